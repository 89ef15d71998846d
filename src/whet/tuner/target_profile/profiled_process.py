"""Take a profile in a child process. If the child ends early, the report that it noted last is kept."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from whet.errors import ModelError, WhetError
from whet.files import write_whole
from whet.measure.isolate import Failure, FailureKind, run_isolated
from whet.measure.machine import describe
from whet.measure.quiet import QuietWait


class _Report(Protocol):
    @property
    def busy(self) -> str:
        """Return what disturbed the measurement; "" for a quiet one."""


T = TypeVar("T", bound=_Report)

_NOTES = "partial.json"


@dataclass(frozen=True)
class Seen(Generic[T]):
    """Hold the outcome of a profile in a child process.

    Attributes:
        report: The whole report, or the part that the child noted before it ended; None if it noted nothing.
        failure: Why the child ended early; None if it finished.
    """

    report: T | None
    failure: WhetError | None = None


def taken_quietly(patience: QuietWait, take: Callable[[], Seen[T]]) -> tuple[T, WhetError | None]:
    """Take a profile, again where the machine was busy. Return it, and why it is only a part, if it is.

    Raises:
        WhetError: There is no report.
    """
    patience.begin()
    seen = patience.measure(take, lambda seen: seen.report.busy if seen.report is not None else "")
    if seen.report is None:
        assert seen.failure is not None
        raise seen.failure
    return seen.report, seen.failure


def note(directory: Path, report: Mapping[str, Any]) -> None:
    """Save the report so far. The child calls this; the file is complete at any time."""
    write_whole(directory / _NOTES, json.dumps(report))


def profiled(
    look: Callable[..., dict[str, Any]],
    arguments: Mapping[str, Any],
    directory: Path,
    *,
    target: str,
    done: str,
    read: Callable[[Mapping[str, Any], str], T],
    ended_early: Callable[[T], None] = lambda report: None,
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Seen[T]:
    """Run `look` in a child process, with a memory limit of nearly all of the machine's memory.

    Args:
        look: Returns the report as JSON, and calls `note` now and then.
        target: The name of the profiled target, for messages.
        done: The past participle for messages, such as "profiled".
        read: Builds a report from its JSON and the reason why the child ended early; "" for a whole report.
        ended_early: On Ctrl-C, called with the report that was noted last.
        environment: Variables that the child gets in addition to this process's own.
    """
    (directory / _NOTES).unlink(missing_ok=True)  # an earlier try may have left one
    try:
        outcome = run_isolated(
            look,
            arguments,
            directory,
            time_limit_s=time_limit_s,
            memory_limit_bytes=describe().most_bytes,
            environment=environment,
        )
    except KeyboardInterrupt:
        report = _noted(directory, "stopped by Ctrl-C", read)
        if report is not None:
            ended_early(report)
        raise
    if outcome.value is not None:
        return Seen(read(outcome.value, ""))
    assert outcome.failure is not None
    return Seen(_noted(directory, outcome.failure.message, read), _error_of(outcome.failure, target, done))


def _noted(directory: Path, why: str, read: Callable[[Mapping[str, Any], str], T]) -> T | None:
    try:
        data = json.loads((directory / _NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return read(data, why)


def _error_of(failure: Failure, target: str, done: str) -> WhetError:
    if failure.kind is not FailureKind.USER:
        return ModelError(f"{target} could not be {done} to its end: {failure.message}")
    return failure.as_error()
