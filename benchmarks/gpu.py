"""Check whet on a GPU and measure what it makes of one, group by group; each takes at most three minutes.

    python benchmarks/gpu.py [--group tests,tune] [--device cpu] [--quick] [--out FOLDER] [--commit NAME]

Without --group, every group runs, the one that was run longest ago first. A group is a list of steps. Each step has a
process and a time limit of its own: one that fails is a row of the table with its reason, and the next one begins. The
figures are merged by group, date and commit into docs/results/gpu.json, and into gpu.json in the folder that --out
names. --device cpu lets the CPU stand in, to check the script itself, and writes to --out alone; --quick takes the
smallest models and budgets. Exit code: 0 where every step went well, 1 where one did not, 2 where the machine lacks
what is needed.

Needs CUDA's torch, NumPy and SciPy, and what `make gpu-wheels` brings along; whet itself need not be installed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import gpu_results
import gpu_wheels
from gpu_plan import GROUPS, Step, plan

ROOT = Path(__file__).parents[1]
GROUP_S = 180.0  # so that with the start of a machine it stays below four minutes
WIDTH = 100  # columns of the table


@dataclass
class Row:
    """What came of a step. status: ok, failed, skipped or not begun."""

    name: str
    status: str
    seconds: float
    sentence: str
    figures: dict[str, Any]


# Calls a step's function: (function, arguments, seconds) -> (what it returned, or None; why it failed; its kind)
Run = Callable[[str, dict[str, Any], float], tuple[dict[str, Any] | None, str, str]]


def main() -> None:
    options = _options()
    prepare()
    about = described(options.device)
    groups = [name for name in options.group.split(",") if name] or by_age(gpu_results.read())
    out = [options.out / "gpu.json"] if options.out else []
    paths = [*out, *([gpu_results.RESULTS] if options.device == "cuda" else [])]
    bad = False
    with tempfile.TemporaryDirectory(prefix="whet-gpu-") as scratch:
        os.environ["WHET_CACHE"] = str(Path(scratch) / "cache")  # limits are measured here and now
        if options.device != "cuda":
            os.environ["WHET_GPU_STANDIN"] = options.device
            os.environ["WHET_PRETENDED_LOAD"] = "0"  # the script is checked, not the machine: it waits for no quiet
        for group in groups:
            steps = plan(group, options.device, quick=options.quick)
            if options.only:
                steps = [step for step in steps if step.name in options.only.split(",")]
            print(f"{group}:", flush=True)
            known = {"command": f"python benchmarks/gpu.py --group {group}", "group": group, "commit": options.commit}

            def save(rows: Sequence[Row], known: dict[str, Any] = known, num_steps: int = len(steps)) -> None:
                done = {"is_complete": len(rows) == num_steps, "steps": [asdict(row) for row in rows]}
                if not options.only:
                    gpu_results.save(paths, {**known, "written_at": gpu_results.now(), **about, **done})

            rows = run_steps(steps, time.monotonic() + GROUP_S, isolated(Path(scratch)), save)
            print("\n" + table(rows, about) + "\n", flush=True)
            bad |= any(row.status in ("failed", "not begun") for row in rows)
    sys.exit(bad)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", default="", help=f"some of {', '.join(GROUPS)}, separated by commas; all by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: check the script itself")
    parser.add_argument("--quick", action="store_true", help="the smallest models and budgets")
    parser.add_argument("--only", default="", help="names of steps, separated by commas; nothing is written then")
    parser.add_argument("--out", type=Path, default=None, help="a folder that gets gpu.json too")
    parser.add_argument("--commit", default="", help="the commit's name, where git cannot tell it")
    options = parser.parse_args()
    if unknown := [name for name in options.group.split(",") if name and name not in GROUPS]:
        parser.error(f"there is no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    options.commit = options.commit or gpu_results.commit()
    return options


def by_age(runs: Sequence[gpu_results.Run]) -> list[str]:
    """Return all groups: first those that never ran, then that which was run longest ago."""
    known = [group for group in gpu_results.newest(runs) if group in GROUPS]
    return [group for group in GROUPS if group not in known] + known


def prepare() -> None:
    """Put whet and the wheels that were brought along on the path, for this process and those it starts.

    Ends the program with exit code 2 and a sentence where something is missing.
    """
    places = [ROOT / "src", ROOT / "packages/whet-audit/src", ROOT / "benchmarks"]
    sys.path[:0] = map(str, places)
    needed = gpu_wheels.CARRIED | gpu_wheels.PURE | gpu_wheels.USUAL
    if gpu_wheels.missing(needed):
        try:
            site = gpu_wheels.unpack()
        except ValueError as error:
            _stop(str(error))
        if site is not None:
            places.append(site)
            sys.path.insert(3, str(site))
    if lacking := gpu_wheels.missing(gpu_wheels.LEFT_OUT):
        _stop(f"{', '.join(lacking)} must be installed on the GPU machine: `make gpu-wheels` leaves them out")
    if lacking := gpu_wheels.missing(needed):
        everything = "" if set(lacking) <= {*gpu_wheels.CARRIED, *gpu_wheels.PURE} else " GPU_WHEELS=--all"
        _stop(
            f"this Python lacks {', '.join(lacking)}: run `make gpu-wheels GPU_PYTHON=3.{sys.version_info.minor}"
            f"{everything}` where there is a network, and bring .wheels/ along"
        )
    inherited = [place for place in [os.environ.get("PYTHONPATH")] if place]
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, places), *inherited])


def described(device: str) -> dict[str, Any]:
    """The machine and the versions. Ends the program with exit code 2 where there is no GPU."""
    import torch

    from whet.measure.machine import describe, versions

    if device == "cuda" and not torch.cuda.is_available():
        _stop("torch finds no CUDA device here; `benchmarks/gpu.py --device cpu --quick` checks the script alone")
    machine = describe()
    return {"device": device, "machine": machine.facts(), "fingerprint": machine.fingerprint, "versions": versions()}


def isolated(scratch: Path) -> Run:
    """Run steps in processes of their own in the repository's root, each with a time limit; logs go with `scratch`."""
    from whet.measure.isolate import QUIET, run_isolated

    def run(function: str, arguments: dict[str, Any], limit_s: float) -> tuple[dict[str, Any] | None, str, str]:
        module, _, name = function.partition(":")
        outcome = run_isolated(
            getattr(import_module(module), name),
            arguments,
            scratch / name,
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
            rows.append(Row(step.name, "not begun", 0.0, said, {}))
        else:
            value, failed, kind = run(step.function, step.arguments, min(step.limit_s, left_s))
            rows.append(_row(step, clock() - started, value, failed, kind))
        print(_line(rows[-1]), flush=True)
        save(rows)
    return rows


def _row(step: Step, seconds: float, value: dict[str, Any] | None, failed: str, kind: str) -> Row:
    if value is None:
        return Row(step.name, "skipped" if kind == "MissingExtra" else "failed", seconds, failed, {})
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


def _stop(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
