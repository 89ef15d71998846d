"""What `whet profile TARGET` runs in a child process: find the target, profile it, hand everything back as JSON."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from whet.errors import MachineError
from whet.files import write_whole
from whet.machine import Limits, describe, load_limits
from whet.profiler import Profile
from whet.profiler.chrome import FILE as TRACE
from whet.profiler.report import Report, as_json
from whet.profiler.verdict import Hint
from whet.profiler.workload_profile import device_of, profile_workload, run_for_nsight
from whet.tuner.space import applicable_techniques
from whet.workload import Workload, examine
from whet.workloads import resolve

PARTIAL = "partial.json"  # what is known so far, for when this process ends before its time


def look(target: str, directory: str, depth: int | None) -> dict[str, Any]:
    """The report of a target, as JSON. Writes its trace into `directory`, and after each pass what is known so far."""
    folder = Path(directory)
    workload = resolve(target)
    machine = describe()
    found = profile_workload(
        workload,
        limits=partial(load_limits, machine, device=device_of(workload)),
        advise=advise,
        depth=depth,
        target=target,
        done=lambda report: _note(folder, report),
    )
    if found.trace is not None:
        write_whole(folder / TRACE, found.trace)
    return as_json(found.report)


def advise(workload: Workload, profile: Profile, limits: Limits) -> list[Hint]:
    """The techniques that apply, each with the most that any of its variants could gain."""
    applicable, _ = applicable_techniques(examine(workload, with_quality=False), describe(), limits, profile)
    return [Hint(entry.technique, entry.most) for entry in applicable]


def run_nvtx(target: str) -> None:
    """Run a target for Nsight, in this process."""
    workload = resolve(target)
    if device_of(workload) != "cuda":
        raise MachineError("--nvtx marks what runs on a GPU; this target's model and inputs are on the CPU")
    run_for_nsight(workload)


def _note(folder: Path, report: Report) -> None:
    write_whole(folder / PARTIAL, json.dumps(as_json(report)))
