"""Analyse a recorded trace, or compare two of them (`whet.profile_trace`)."""

import os
from pathlib import Path
from typing import overload

from whet.profiling.trace.changes import TraceChanges, compare_traces
from whet.profiling.trace.report import TraceReport, analyse_file


@overload
def profile_trace(trace: str | os.PathLike[str]) -> TraceReport: ...
@overload
def profile_trace(trace: str | os.PathLike[str], after: str | os.PathLike[str]) -> TraceChanges: ...
def profile_trace(
    trace: str | os.PathLike[str], after: str | os.PathLike[str] | None = None
) -> TraceReport | TraceChanges:
    """Read a trace that PyTorch's profiler wrote, and find what bounds the run, or what changed to a second trace.

    Args:
        trace: The file, gzipped or not.
        after: The second trace.

    Returns:
        The report of the trace, or the changes from it to the second one. Times are in nanoseconds.

    Raises:
        TraceError: A file is damaged, or PyTorch did not write it.
    """
    report = analyse_file(Path(trace))
    return report if after is None else compare_traces(report, analyse_file(Path(after)))
