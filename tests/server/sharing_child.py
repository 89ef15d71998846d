"""Open an engine with shared weights in a process of its own, and answer questions about it: one JSON object a line.

The argument is a JSON object: the model's `directory`, the `options` of the engine, and `die_while_packing`. The first
line says which tokens it generates. Each line on standard input is answered with the memory that it holds now.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from whet.models.shared_weights import opening
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams

PROMPT = [7, 3, 11, 2, 5]


def generated(engine: Engine) -> list[int]:
    return engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)).token_ids


def memory_of_weights(pid: int | str = "self") -> dict[str, int]:
    """Return the kB that a process maps of files of weights, as /proc says, by name."""
    found: dict[str, int] = {}
    is_weights = False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split()[0]:
            is_weights = ".weights" in line
        elif is_weights and line.endswith("kB"):
            name, size, _ = line.split()
            found[name.rstrip(":")] = found.get(name.rstrip(":"), 0) + int(size)
    return found


def rights_of_weights() -> list[str]:
    """Return the rights with which this process maps files of weights, as "r--s"."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line.split()[1] for line in lines if ".weights" in line]


def whole_memory(pid: int | str = "self") -> dict[str, int]:
    """Return the kB of a process by name: Rss, Pss, Pss_Anon, Pss_Shmem and others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    packs: list[str] = []
    pack: Any = opening._pack

    def seen(*given: Any) -> Any:
        packs.append("packed")
        return pack(*given)

    opening._pack = seen
    if asked.get("die_while_packing"):
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
    with Engine(Path(asked["directory"]), EngineOptions(**asked["options"]), draft=asked.get("draft")) as engine:
        said = {"tokens": generated(engine), "num_packed": len(packs), "rights": rights_of_weights()}
        said["large_imports"] = sorted({"sympy", "torch._dynamo"} & set(sys.modules))
        print(json.dumps(said), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"weights": memory_of_weights(), "whole": whole_memory()}), flush=True)


if __name__ == "__main__":
    main()
