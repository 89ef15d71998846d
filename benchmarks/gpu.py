"""Check whet on a GPU and measure what it makes of one, in at most nine minutes.

    python benchmarks/gpu.py [--device cpu] [--quick] [--minutes 9] [--out docs/results/gpu.json]

Runs the tests that are marked gpu; then limits, tune, bench, gate, profile, watch and monitor on the GPU. Each step has
a process and a time limit of its own: one that fails is a row of the table with its reason, and the next one begins. A
table comes last, the figures go to docs/results/gpu.json. --device cpu lets the CPU stand in, to check the script
itself; --quick takes the smallest models and budgets. Exit code: 0 where every step went well, 1 where one did not, 2
where the machine lacks what is needed.

Needs CUDA's torch, NumPy and SciPy, and what `make gpu-wheels` brings along; whet itself need not be installed.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import gpu_wheels

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "gpu.json"
BUILTIN = ("digits-cnn", "docs-encoder", "docs-gpt")
WIDTH = 100  # columns of the table


@dataclass(frozen=True)
class Step:
    """One part of the check. function: of gpu_steps. limit_s: at most; least_s: with less time left it is not begun."""

    name: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    limit_s: float = 60.0
    least_s: float = 15.0


@dataclass
class Row:
    """What came of a step. status: ok, failed, skipped or not begun."""

    name: str
    status: str
    seconds: float
    sentence: str
    figures: dict[str, Any] = field(default_factory=dict)


# Calls a function of gpu_steps: (function, arguments, seconds) -> (what it returned, or None; why it failed; its kind)
Run = Callable[[str, dict[str, Any], float], tuple[dict[str, Any] | None, str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: check the script itself")
    parser.add_argument("--quick", action="store_true", help="the smallest models and budgets")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    parser.add_argument("--out", type=Path, default=None, help="the figures; docs/results/gpu.json on a GPU")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    prepare()
    about = described(options.device)
    steps = plan(options.device, quick=options.quick)
    if options.only:
        steps = [step for step in steps if step.name.partition(" ")[0] in options.only.split(",")]
    out = options.out or (RESULTS if options.device == "cuda" else None)
    with tempfile.TemporaryDirectory(prefix="whet-gpu-") as scratch:
        os.environ["WHET_CACHE"] = str(Path(scratch) / "cache")  # limits are measured here and now
        if options.device != "cuda":
            os.environ["WHET_GPU_STANDIN"] = options.device
        rows = run_steps(steps, deadline, isolated(Path(scratch)), lambda rows: _save(out, about, rows, steps))
    print("\n" + table(rows, about), flush=True)
    sys.exit(any(row.status in ("failed", "not begun") for row in rows))


def prepare() -> None:
    """Put whet and the wheels that were brought along on the path, for this process and those it starts.

    Ends the program with exit code 2 and a sentence where something is missing.
    """
    places = [ROOT / "src", ROOT / "benchmarks"]
    sys.path[:0] = map(str, places)
    needed = gpu_wheels.CORE | gpu_wheels.TESTS
    if gpu_wheels.missing(needed):
        try:
            site = gpu_wheels.unpack()
        except ValueError as error:
            _stop(str(error))
        if site is not None:
            places.append(site)
            sys.path.insert(2, str(site))
    if lacking := gpu_wheels.missing(gpu_wheels.LEFT_OUT):
        _stop(f"{', '.join(lacking)} must be installed on the GPU machine: `make gpu-wheels` leaves them out")
    if lacking := gpu_wheels.missing(needed):
        _stop(
            f"this Python lacks {', '.join(lacking)}: run `make gpu-wheels GPU_PYTHON=3.{sys.version_info.minor}` "
            "where there is a network, and bring .wheels/ along"
        )
    inherited = [place for place in [os.environ.get("PYTHONPATH")] if place]
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, places), *inherited])


def described(device: str) -> dict[str, Any]:
    """The machine and the versions. Ends the program with exit code 2 where there is no GPU."""
    import torch

    from whet.machine import describe, versions

    if device == "cuda" and not torch.cuda.is_available():
        _stop("torch finds no CUDA device here; `benchmarks/gpu.py --device cpu --quick` checks the script alone")
    machine = describe()
    return {"device": device, "machine": machine.facts(), "fingerprint": machine.fingerprint, "versions": versions()}


def plan(device: str, *, quick: bool) -> list[Step]:
    """Every step: the short ones first, so that none of the long ones keeps them from their turn."""
    size = "small_transformer" if quick else "transformer"
    bf16 = f"benchmarks/gpu_targets.py:{size}?device={device}"
    target = bf16 if quick else f"digits-cnn?device={device}"
    budget_s = 3.0 if quick else 25.0
    loop = {"device": device, "width": 64 if quick else 512, "num_steps": 12 if quick else 60}
    tuned = [] if quick else [(name, f"{name}?device={device}") for name in BUILTIN]
    tuned.append(("bf16-transformer", bf16))
    return [
        Step("limits", "measure_limits", {"device": device}, 45, 15),
        Step("profile", "profile", {"target": bf16, "device": device}, 60, 20),
        Step("watch", "watch", loop, 40, 10),
        Step("monitor", "monitor", loop, 40, 10),
        Step("bench", "bench", {"target": target, "batches": [1] if quick else [1, 8, 64], "budget_s": 0.5}, 45, 20),
        Step("gate", "gate", {"target": target, "processes": 2 if quick else 4, "budget_s": 0.3}, 60, 20),
        Step("gate against HEAD", "gate_against", {"target": target, "reference": "HEAD", "budget_s": 0.3}, 75, 30),
        Step("tests", "run_tests", {"selection": ["tests/gpu"] if quick else []}, 200, 30),
        *(Step(f"tune {name}", "tune", {"target": t, "budget_s": budget_s}, 75, 30) for name, t in tuned),
    ]


def isolated(scratch: Path) -> Run:
    """Run steps in processes of their own in the repository's root, each with a time limit; logs go with `scratch`."""
    from whet.measure.isolate import QUIET, run_isolated

    def run(function: str, arguments: dict[str, Any], limit_s: float) -> tuple[dict[str, Any] | None, str, str]:
        outcome = run_isolated(
            getattr(import_module("gpu_steps"), function),
            arguments,
            scratch / function,
            time_limit_s=limit_s,
            environment=QUIET,
            working_directory=ROOT,
        )
        failure = outcome.failure
        return outcome.value, failure.message if failure else "", failure.type if failure else ""

    return run


def run_steps(
    steps: Sequence[Step],
    deadline: float,
    run: Run,
    save: Callable[[Sequence[Row]], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Row]:
    """Run every step that the deadline, as `clock` tells, leaves time for. save: told of all rows after each step."""
    rows: list[Row] = []
    for step in steps:
        started = clock()
        left_s = deadline - started
        if left_s < step.least_s:
            said = f"{max(0.0, left_s):.0f} s were left, and it needs {step.least_s:.0f} s"
            rows.append(Row(step.name, "not begun", 0.0, said))
        else:
            print(f"{step.name} ...", flush=True)
            value, failed, kind = run(step.function, step.arguments, min(step.limit_s, left_s))
            rows.append(_row(step, clock() - started, value, failed, kind))
            print(_line(rows[-1]), flush=True)
        save(rows)
    return rows


def _row(step: Step, seconds: float, value: dict[str, Any] | None, failed: str, kind: str) -> Row:
    if value is None:
        return Row(step.name, "skipped" if kind == "MissingExtra" else "failed", seconds, failed)
    status = "skipped" if value.get("skipped") else "ok" if value.get("ok", True) else "failed"
    return Row(step.name, status, seconds, value["sentence"], value["figures"])


def table(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """A line for each step, the outcome in short first; then the machine and the sum."""
    versions = about["versions"]
    bad = sum(row.status in ("failed", "not begun") for row in rows)
    machine = about["machine"]
    where = machine["gpu"] if about["device"] == "cuda" else f"the CPU standing in ({machine['chip']})"
    return "\n".join(
        [
            f"whet {versions.get('whet')} on {where}, torch {versions.get('torch')}, Python {versions.get('python')}",
            *map(_line, rows),
            f"{len(rows) - bad} of {len(rows)} steps went well, in {sum(row.seconds for row in rows):.0f} s",
        ]
    )


def _line(row: Row) -> str:
    text = f"{row.name:<22} {row.status:<10} {row.seconds:>5.0f} s  {' '.join(row.sentence.split())}"
    return text if len(text) <= WIDTH or row.status == "failed" else text[: WIDTH - 1] + "…"


def _save(out: Path | None, about: dict[str, Any], rows: Sequence[Row], steps: Sequence[Step]) -> None:
    from whet.files import write_whole

    if out is None:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    report = {
        "command": "python benchmarks/gpu.py",
        "written_at": now,
        **about,
        "is_complete": len(rows) == len(steps),
        "steps": [asdict(row) for row in rows],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, json.dumps(report, indent=1) + "\n")


def _stop(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
