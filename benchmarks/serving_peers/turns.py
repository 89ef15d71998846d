"""A contender that waits between its turns: `python -m serving_peers.turns ENGINE KIND WORK`.

It loads its model once, then reads a line of JSON a turn, {"task": ..., "seed": ...}, and answers with one, after the
word "answer". Turns are short, so that those of all contenders lie close together. Whatever a library prints goes to
standard error.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from serving_peers.contender import Contender, Request, Timeline
from serving_peers.tasks import Prompts, busy_cores

PREFILL = 1024  # tokens of a prompt
DECODED = 48  # tokens after the first one
MANY, OF_MANY = 16, 33  # requests at once, and what each is to be answered with
_SHORT_PROMPT = 16


def main() -> None:
    engine_name, kind, work = sys.argv[1:]
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        # The scripts beside this package must not pass for packages of the same names that an engine looks for.
        sys.path[:] = [p for p in sys.path if Path(p).resolve() != Path(__file__).parents[1]]
        engine = importlib.import_module(f"serving_peers.{engine_name}")
        engine.prepare(Path(work), kind)
        contender = engine.start(Path(work), kind)
        _say(answers, {"settings": contender.settings, "agreement": _first_tokens(contender)})
        for line in sys.stdin:
            _say(answers, _turn(contender, **json.loads(line)))
    os._exit(0)  # some engines take seconds to put themselves away, or fail at it


def _say(answers: Any, answer: dict[str, Any]) -> None:
    print("answer", json.dumps(answer), file=answers, flush=True)


def _turn(contender: Contender, task: str, seed: int) -> dict[str, Any]:
    with busy_cores() as busy:
        rate = _TASKS[task](contender, Prompts(f"{task} {seed}"))
    return {"tokens_per_s": rate, **busy}


def _decode(contender: Contender, prompts: Prompts) -> float:
    """Tokens a second after the first one, of one request alone."""
    times_s = _generated(contender, prompts.request(_SHORT_PROMPT, 1 + DECODED)).times_s
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


def _prefill(contender: Contender, prompts: Prompts) -> float:
    """Tokens a second of a prompt, up to the first token after it."""
    return PREFILL / _generated(contender, prompts.request(PREFILL, 1)).times_s[0]


def _one(contender: Contender, prompts: Prompts) -> float:
    """Output tokens a second of one request, its short prompt included."""
    return _together(contender, [prompts.request(_SHORT_PROMPT, OF_MANY)])


def _many(contender: Contender, prompts: Prompts) -> float:
    """Output tokens a second of 16 such requests at once."""
    return _together(contender, [prompts.request(_SHORT_PROMPT, OF_MANY) for _ in range(MANY)])


_TASKS = {"decode": _decode, "prefill": _prefill, "one": _one, "many": _many}


def _generated(contender: Contender, request: Request) -> Timeline:
    timeline = contender.generate(request)
    if len(timeline.tokens) != request.num_tokens or len(timeline.times_s) != request.num_tokens:
        raise RuntimeError(f"{request.num_tokens} tokens were asked for, {len(timeline.tokens)} came")
    return timeline


def _together(contender: Contender, requests: list[Request]) -> float:
    start = time.perf_counter()
    outputs = contender.serve(requests)
    wall_s = time.perf_counter() - start
    if [len(output) for output in outputs] != [request.num_tokens for request in requests]:
        raise RuntimeError("not as many tokens came as were asked for")
    return sum(map(len, outputs)) / wall_s


def _first_tokens(contender: Contender) -> list[int]:
    """The first tokens after a few prompts, the same ones for every engine: shows that all compute one model."""
    prompts = Prompts("agreement")
    return [contender.generate(prompts.request(24, 1)).tokens[0] for _ in range(16)]


if __name__ == "__main__":
    main()
