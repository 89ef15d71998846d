"""A measurement in a fresh process, with a time limit and a memory limit.

A crash, a hang or running out of memory there is a result, never an end. The child gets its arguments and gives its
result as JSON files; its output goes to a log beside them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from whet.measure.child import ARGUMENTS, LOG, RESULT

_POLL_S = 0.05


class FailureKind(StrEnum):
    ERROR = "error"  # an exception
    USER = "user"  # a WhetError: something the user can mend
    CRASH = "crash"
    TIMEOUT = "timeout"
    MEMORY = "memory"


@dataclass(frozen=True)
class Failure:
    """Why a process gave no result. type: the exception's class name, or "" for a crash, a hang or memory."""

    kind: FailureKind
    message: str
    type: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a process gave: a value or a failure, and what it took. peak_rss_bytes: as sampled from outside."""

    value: dict[str, Any] | None
    failure: Failure | None
    seconds: float
    peak_rss_bytes: int


def run_isolated(
    function: str,
    arguments: Mapping[str, Any],
    directory: Path,
    *,
    time_limit_s: float,
    memory_limit_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Call `package.module:function`(**arguments) in a fresh process and return what came of it.

    arguments and the function's result must be JSON. `directory` holds the exchange and the child's log. On Ctrl-C
    the child and all it started are ended, and KeyboardInterrupt goes on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RESULT).unlink(missing_ok=True)
    (directory / ARGUMENTS).write_text(json.dumps(dict(arguments)), encoding="utf-8")
    started = time.perf_counter()
    with (directory / LOG).open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "whet.measure.child", function, str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            peak, ended_by = _watch(child, started + time_limit_s, memory_limit_bytes)
        finally:
            _end(child)
    seconds = time.perf_counter() - started
    value, failure = _read_result(directory, child.returncode, ended_by, time_limit_s, memory_limit_bytes)
    return Outcome(value, failure, seconds, peak)


def _watch(child: subprocess.Popen[bytes], deadline: float, memory_limit: int | None) -> tuple[int, FailureKind | None]:
    peak = 0
    while True:
        try:
            child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return peak, None
        peak = max(peak, _tree_rss(child.pid))
        if memory_limit is not None and peak > memory_limit:
            return peak, FailureKind.MEMORY
        if time.perf_counter() > deadline:
            return peak, FailureKind.TIMEOUT


def _tree_rss(pid: int) -> int:
    total = 0
    try:
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            try:
                total += each.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0
    return total


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child's whole process group: compilers and worker processes that it started too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read_result(
    directory: Path, returncode: int, ended_by: FailureKind | None, time_limit_s: float, memory_limit: int | None
) -> tuple[dict[str, Any] | None, Failure | None]:
    if ended_by is FailureKind.TIMEOUT:
        return None, Failure(ended_by, f"took longer than its limit of {time_limit_s:.0f} s")
    if ended_by is FailureKind.MEMORY and memory_limit is not None:
        return None, Failure(ended_by, f"used more memory than its limit of {memory_limit / 2**20:,.0f} MiB")
    try:
        result = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, Failure(FailureKind.CRASH, _crash_message(directory, returncode))
    if "value" in result:
        return result["value"], None
    return None, Failure(FailureKind(result["kind"]), result["message"], result["type"])


def _crash_message(directory: Path, returncode: int) -> str:
    if returncode < 0:
        name = signal.Signals(-returncode).name
        reason = f"the process was ended by {name}"
        if name == "SIGKILL":
            reason += " (out of memory, or by hand)"
    else:
        reason = f"the process ended with exit code {returncode}"
    text = (directory / LOG).read_text(encoding="utf-8", errors="replace").strip()
    return f"{reason}: {text.splitlines()[-1][:300]}" if text else reason
