"""Find what bounds a named model (`whet.profile_target`), in a child process, so that a hang becomes an error."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from whet.core.workload import Workload, examine
from whet.errors import MachineError, ModelError, OptionError, OutputError
from whet.files import names_in, replace_directory, writable_parent, write_whole
from whet.measure.isolate import QUIET
from whet.measure.machine import Limits, describe, load_limits
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.profiling.model import Profile
from whet.profiling.model.chrome import FILE as TRACE
from whet.profiling.model.report import Report, as_json, from_json
from whet.profiling.model.session import PROFILE
from whet.profiling.model.verdict import Hint
from whet.profiling.model.workload_profile import device_of, profile_workload, run_for_nsight
from whet.tuner.space import applicable_techniques
from whet.tuner.target_profile.profiled_process import note, profiled, taken_quietly
from whet.workloads import resolve
from whet.workloads.target_name import check_name

DEPTH = 3
LIMIT_S = 300.0


def profile_target(
    target: str,
    *,
    out: str | os.PathLike[str] | None = None,
    depth: int = DEPTH,
    limit_s: float = LIMIT_S,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    patience: QuietWait | None = None,
    ended_early: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Find what bounds a model, how far it is from the machine's limit, and which techniques address it.

    Args:
        target: A name as for `whet tune`.
        out: A new directory for profile.json and trace.json.gz, which ui.perfetto.dev shows.
        depth: The depth of the tree of modules.
        limit_s: Seconds after which the profile is ended.
        on_busy: What to do if other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: The total number of seconds to wait.
        patience: Replaces the two arguments above, if the caller shows the waiting.
        ended_early: Called with the partial report, if there is one, before an error is raised.

    Returns:
        The report. If the machine was busy, `busy` says so; unless `on_busy` is "go-on", there is no verdict then.

    Raises:
        OutputError: `out` exists, or cannot be written.
        OptionError: An option is out of range.
        TargetError: The target cannot be loaded.
        ModelError: The model raised, or the child process ended early.
    """
    if depth < 1:
        raise OptionError(f"--depth must be 1 or more, not {depth}")
    directory = None if out is None else Path(out)
    if directory is not None:
        check_out(directory)
    check_name(target)
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    with tempfile.TemporaryDirectory(prefix="whet-profile-") as scratch:
        folder = Path(scratch)
        report, failure = taken_quietly(
            patience,
            lambda: profiled(
                look,
                {"target": target, "directory": str(folder.absolute()), "depth": depth},
                folder,
                target=target,
                done="profiled",
                read=_report,
                ended_early=ended_early,
                time_limit_s=limit_s,
                environment=QUIET,
            ),
        )
        if report.busy and not patience.goes_on:
            report = replace(report, verdict=None)  # times from a busy machine justify no verdict
        if failure is None and report.partial:
            failure = ModelError(f"{report.partial}; the report is partial: it shows what was measured before that")
        try:
            if directory is not None:
                write_profile(as_json(report), folder / TRACE, directory)
        except OutputError as error:
            failure = failure or error
    if failure is not None:
        ended_early(report)
        raise failure
    return report


def profile_nvtx(target: str) -> None:
    """Run a target in this process, in NVTX ranges, so that nsys and ncu can record it.

    Args:
        target: A name as for `whet tune`.

    Raises:
        MachineError: The target runs on the CPU.
        TargetError: The target cannot be loaded.
    """
    workload = resolve(target)
    if device_of(workload) != "cuda":
        raise MachineError(
            "--nvtx marks what runs on a GPU, but this target's model and inputs are on the CPU; "
            "move them to the GPU, or profile without --nvtx"
        )
    run_for_nsight(workload)


def look(target: str, directory: str, depth: int | None) -> dict[str, Any]:
    """Return a target's report as JSON, in the child process. Note it after each pass, and write the trace."""
    folder = Path(directory)
    workload = resolve(target)
    machine = describe()
    found = profile_workload(
        workload,
        limits=partial(load_limits, machine, device=device_of(workload)),
        advise=advise,
        depth=depth,
        target=target,
        done=lambda report: note(folder, as_json(report)),
    )
    if found.trace is not None:
        write_whole(folder / TRACE, found.trace)
    return as_json(found.report)


def advise(workload: Workload, profile: Profile, limits: Limits) -> list[Hint]:
    """Return the techniques that apply, each with the highest speedup bound of its variants."""
    applicable, _ = applicable_techniques(examine(workload, with_quality=False), describe(), limits, profile)
    return [Hint(entry.technique, entry.most) for entry in applicable]


def _report(data: Mapping[str, Any], why: str) -> Report:
    report = from_json(dict(data))
    return replace(report, partial=why) if why else report


def check_out(out: Path) -> None:
    """Raise OutputError where a directory for a profile exists already or cannot be made."""
    if names_in(out):
        raise OutputError(f"{out} exists already; choose another --out")
    writable_parent(out.absolute())


def write_profile(report: Mapping[str, Any], trace: Path, out: Path) -> None:
    """Write the directory of a profile with all its files, or nothing. There may be no trace to copy.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error.strerror or error}") from error
    try:
        unfinished.chmod(0o755)  # only its owner can read a temporary directory
        write_whole(unfinished / PROFILE, json.dumps(report, indent=1) + "\n")
        if trace.is_file():
            write_whole(unfinished / TRACE, trace.read_bytes())
        replace_directory(unfinished, out.absolute())
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
