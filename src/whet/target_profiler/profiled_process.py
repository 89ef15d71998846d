"""A profile that is taken in a child process. Where the child ends early, what it had noted until then is kept."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from whet.errors import ModelError, WhetError
from whet.files import write_whole
from whet.machine import describe
from whet.measure.isolate import Failure, FailureKind, run_isolated

T = TypeVar("T")

_NOTES = "partial.json"


@dataclass(frozen=True)
class Seen(Generic[T]):
    """What came of a profile.

    Attributes:
        report: The whole report, or the part that was noted before the child ended; None where nothing was.
        failure: Why the child ended early; None where it came to its end.
    """

    report: T | None
    failure: WhetError | None = None


def note(directory: Path, report: Mapping[str, Any]) -> None:
    """Write down in the child what is known so far. The file is whole at any time."""
    write_whole(directory / _NOTES, json.dumps(report))


def profiled(
    look: Callable[..., dict[str, Any]],
    arguments: Mapping[str, Any],
    directory: Path,
    *,
    target: str,
    done: str,
    read: Callable[[Mapping[str, Any], str], T],
    ended_early: Callable[[T], None],
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Seen[T]:
    """Run `look` in a child process, within nearly all of the machine's memory.

    Args:
        look: Returns the report as JSON, and calls `note` now and then.
        arguments: Of `look`.
        directory: Where the child writes.
        target: What is profiled, for messages.
        done: What is done with the target, for messages, such as "profiled".
        read: Makes a report of its JSON and of why the child ended early; "" for a whole report.
        ended_early: On Ctrl-C, is given what was noted until then.
        time_limit_s: Seconds after which the child is ended.
        environment: Variables that the child gets beside this process's own.
    """
    (directory / _NOTES).unlink(missing_ok=True)  # of an earlier try
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
