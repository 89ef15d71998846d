"""Run measurements in fresh processes with a time limit and a memory limit; group.py runs several together.

A crash, a hang or running out of memory in a child is a result, and does not end the parent. A child's arguments and
its result are JSON files, made of pydantic models or plain arguments. Its output goes to a log beside them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
from pydantic import BaseModel

from whet import errors
from whet.errors import WhetError
from whet.measure import load
from whet.measure.exchange import ARGUMENTS, RESULT

LOG = "log.txt"

RANK, WORLD_SIZE, RENDEZVOUS = "WHET_RANK", "WHET_WORLD_SIZE", "WHET_RENDEZVOUS"  # environment variables

# An environment for what whet runs by itself: nothing asks the network or reports to anyone.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

_POLL_S = 0.05
_GRACE_S = 2.0  # in which a process may say why it ends, once another one of its group has failed
_LIST_S = 0.5  # listing every process of a busy machine takes milliseconds, which the child would be timed with
_LOG_TAIL = 8192


Answer = TypeVar("Answer", bound=BaseModel)


class FailureKind(StrEnum):
    ERROR = "error"  # an exception
    USER = "user"  # a WhetError: something the user can mend
    CRASH = "crash"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PEER = "peer"  # another process of the same group failed


@dataclass(frozen=True)
class Failure:
    """Say why a process gave no result. `type` is the exception's class; "" for a crash, a hang or a lack of memory."""

    kind: FailureKind
    message: str
    type: str = ""

    def as_error(self) -> WhetError:
        """Return the user error that the process raised, as an instance of its own class."""
        kind = getattr(errors, self.type, WhetError)
        is_plain = isinstance(kind, type) and issubclass(kind, WhetError) and kind is not errors.MissingExtra
        return kind(self.message) if is_plain else WhetError(self.message)


@dataclass(frozen=True)
class Outcome:
    """Hold what a process returned, and what it used.

    Attributes:
        value: What the function returned, as JSON; None where the process failed.
        seconds: Wall time of the process.
        peak_rss_bytes: The peak resident memory, as sampled from outside.
    """

    value: dict[str, Any] | None
    failure: Failure | None
    seconds: float
    peak_rss_bytes: int

    def answer(self, kind: type[Answer]) -> Answer | None:
        """Return the value as the type that the function answered with; None where the process failed."""
        return None if self.value is None else kind.model_validate(self.value)


Function = Callable[..., BaseModel | dict[str, Any] | None]
"""A function that a child calls, with a pydantic model or JSON arguments. It returns a model, a JSON dict, or None."""

Arguments = BaseModel | Mapping[str, Any]
"""The pydantic model that a function takes, or its arguments by name."""


@dataclass(frozen=True)
class Job:
    """Describe a function to call in a process of its own.

    Attributes:
        directory: The directory for the process's arguments, result and log.
        environment: Variables that are added to this process's.
        working_directory: This process's, if not given.
        inherit: File descriptors that are handed to the child, and closed here.
    """

    function: Function
    arguments: Arguments
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: Path | None = None
    inherit: tuple[int, ...] = ()


def address_of(function: Callable[..., Any]) -> str:
    """Return "module:name" of a function, or raise ValueError where another process cannot import it by that."""
    name, module = function.__qualname__, function.__module__
    if not name.isidentifier() or module == "__main__":
        raise ValueError(f"{module}:{name} cannot be imported by another process; use a function of a module")
    return f"{module}:{name}"


class Child(Protocol):
    """Describe a process that was started: subprocess.Popen, or a class with the same members."""

    @property
    def pid(self) -> int:
        """Return the process's id."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process, and return its exit code, or minus the signal that ended it."""


def run_isolated(
    function: Function,
    arguments: Arguments,
    directory: Path,
    *,
    time_limit_s: float,
    memory_limit_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    working_directory: Path | None = None,
    inherit: Sequence[int] = (),
    start: Callable[[str, Path], Child | None] | None = None,
) -> Outcome:
    """Call a function in a process of its own and return what came of it; see Job for what is not explained here.

    On Ctrl-C the child and all it started are ended, and KeyboardInterrupt goes on.

    Args:
        function: What is called. Its module is imported in the child.
        time_limit_s: Seconds after which the child is ended.
        memory_limit_bytes: Resident memory beyond which the child is ended.
        start: Makes the process from the function's address and the directory, as a ForkServer does, whose environment
            it has. Without it, or where it returns None, a fresh interpreter is started.
    """
    job = Job(function, arguments, directory, environment or {}, working_directory, tuple(inherit))
    return run_job(job, time_limit_s, memory_limit_bytes, start=start)


def run_job(
    job: Job,
    time_limit_s: float,
    memory_limit_bytes: int | None,
    *,
    start: Callable[[str, Path], Child | None] | None = None,
    failed: threading.Event | None = None,
) -> Outcome:
    """Run one job. It is ended where `failed` is set."""
    directory, address = job.directory.absolute(), address_of(job.function)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RESULT).unlink(missing_ok=True)
    asked = job.arguments
    arguments = asked.model_dump(mode="json") if isinstance(asked, BaseModel) else dict(asked)
    (directory / ARGUMENTS).write_text(json.dumps(arguments), encoding="utf-8")
    began = time.perf_counter()
    (directory / LOG).write_bytes(b"")
    try:
        child = start(address, directory) if start is not None else None
        if child is None:
            child = _start(address, directory, job)
    finally:
        for descriptor in job.inherit:
            os.close(descriptor)
    try:
        peak, ended_by = _watch(child, began + time_limit_s, memory_limit_bytes, failed)
    finally:
        end_tree(child)
    seconds = time.perf_counter() - began
    value, failure = _read_result(directory, child.wait(), ended_by, time_limit_s, memory_limit_bytes)
    return Outcome(value, failure, seconds, peak)


def _start(address: str, directory: Path, job: Job) -> Child:
    words = [sys.executable, "-P", "-m", "whet.measure.child", address, str(directory)]
    variables = {**os.environ, **load.environment(), **job.environment}
    return started(words, directory, variables, job.working_directory, job.inherit)


def started(
    words: Sequence[str],
    directory: Path,
    variables: Mapping[str, str],
    working_directory: Path | None,
    inherit: Sequence[int] = (),
) -> Child:
    """Start a process in a session of its own, which can read no input and writes to the log in `directory`."""
    with (directory / LOG).open("ab") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=working_directory,
            start_new_session=True,
            pass_fds=inherit,
        )


def _watch(
    child: Child, deadline: float, memory_limit: int | None, failed: threading.Event | None
) -> tuple[int, FailureKind | None]:
    """Wait for a child, and return its peak memory and why it has to be ended, if it has to."""
    tree, listed = _tree(child.pid), time.perf_counter()
    peak, counted = _rss(tree), 0.0
    leave_at: float | None = None
    while True:
        try:
            child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return peak, None
        now = time.perf_counter()
        if now > listed + _LIST_S:
            tree, listed = _tree(child.pid), now
        resident = _rss(tree)
        peak = max(peak, resident)
        if memory_limit is not None and resident > memory_limit and now > counted + _LIST_S:
            if _pss(tree) > memory_limit:
                return peak, FailureKind.MEMORY
            counted = now
        if now > deadline:
            return peak, FailureKind.TIMEOUT
        if failed is not None and failed.is_set():
            if leave_at is None:
                leave_at = now + _GRACE_S
            elif now > leave_at:
                return peak, FailureKind.PEER


def _tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; none once it has ended."""
    found = []
    for member in load.tree_of(pid):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(member))
    return found


def _rss(tree: list[psutil.Process]) -> int:
    total = 0
    for process in tree:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _pss(tree: list[psutil.Process]) -> int:
    """Return the memory of several processes in bytes, with pages that forks share counted once."""
    if len(tree) <= 1:
        return _rss(tree)
    total = 0
    for process in tree:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()  # reads every page's entry: slow
            total += getattr(memory, "pss", memory.rss)
    return total


def end_tree(child: Child) -> None:
    """End the child and all it started: compilers and worker processes, in its session or in their own."""
    tree = _tree(child.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.kill()
    child.wait()


def _read_result(
    directory: Path, returncode: int, ended_by: FailureKind | None, time_limit_s: float, memory_limit: int | None
) -> tuple[dict[str, Any] | None, Failure | None]:
    if ended_by is FailureKind.TIMEOUT:
        return None, Failure(ended_by, f"took longer than its limit of {time_limit_s:g} s")
    if ended_by is FailureKind.MEMORY and memory_limit is not None:
        return None, Failure(ended_by, f"used more memory than its limit of {memory_limit / 2**20:,.0f} MiB")
    try:
        match json.loads((directory / RESULT).read_text(encoding="utf-8")):
            case {"value": dict() as value}:
                return value, None
            case {"kind": str() as kind, "message": str() as message, "type": str() as type_}:
                return None, Failure(FailureKind(kind), message, type_)
    except (OSError, ValueError):
        pass
    if ended_by is FailureKind.PEER:
        return None, Failure(ended_by, "another process of the same group failed")
    return None, Failure(FailureKind.CRASH, _crash_message(directory, returncode))


def _crash_message(directory: Path, returncode: int) -> str:
    if returncode >= 0:
        reason = f"the process ended with exit code {returncode} and gave no result"
    elif -returncode == signal.SIGKILL:
        reason = "the process was ended by SIGKILL (out of memory, or by hand)"
    else:
        reason = f"the process was ended by {signal_name(-returncode)}"
    last = last_line(directory / LOG)
    return f"{reason}: {last}" if last else reason


def signal_name(number: int) -> str:
    """Return the name of a signal, as "SIGTERM"."""
    known = number in list(signal.Signals)
    return signal.Signals(number).name if known else f"signal {number}"


def last_line(log: Path) -> str:
    """Return the last line of a log, at most 300 characters of it; "" where the log is empty."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""
