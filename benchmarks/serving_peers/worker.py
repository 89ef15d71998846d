"""One contender in a process of its own: `python -m serving_peers.worker prepare|measure ENGINE KIND WORK ...`.

Prints one line of JSON after the word "answer"; whatever a library prints goes to standard error.
"""

import argparse
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

from serving_peers.tasks import run_task


def main() -> None:
    arguments = _arguments()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        # The scripts beside this package must not pass for packages of the same names that an engine looks for.
        sys.path[:] = [p for p in sys.path if Path(p).resolve() != Path(__file__).parents[1]]
        engine = importlib.import_module(f"serving_peers.{arguments.engine}")
        engine.prepare(arguments.work, arguments.kind)
        answer = {} if arguments.action == "prepare" else _measure(engine, arguments)
        print("answer", json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # some engines take seconds to put themselves away, or fail at it


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["prepare", "measure"])
    parser.add_argument("engine")
    parser.add_argument("kind")
    parser.add_argument("work", type=Path)
    parser.add_argument("--tasks", default="decode")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _measure(engine: object, arguments: argparse.Namespace) -> dict[str, object]:
    start = time.perf_counter()
    contender = engine.start(arguments.work, arguments.kind)  # type: ignore[attr-defined]
    answer: dict[str, object] = {"load_s": time.perf_counter() - start}
    for task in arguments.tasks.split(","):
        answer[task] = run_task(task, contender, arguments.seed)
    answer["settings"] = contender.settings
    answer["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer


if __name__ == "__main__":
    main()
