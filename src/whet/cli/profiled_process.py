"""What `whet profile` grants the process that it looks at, and what it says where that one ended early."""

from whet.errors import ModelError, WhetError
from whet.machine import describe
from whet.measure.isolate import Failure, FailureKind

_MEMORY_SHARE = 0.95  # of the machine's: beyond that the system would end processes of its own choice


def memory_limit_bytes() -> int:
    """The most memory such a process may take."""
    return int(describe().memory_bytes * _MEMORY_SHARE)


def error_of(failure: Failure, target: str, done: str) -> WhetError:
    """Why a target could not be looked at to its end. done: what was being done with it, as "profiled"."""
    if failure.kind is not FailureKind.USER:
        return ModelError(f"{target} could not be {done} to its end: {failure.message}")
    return failure.as_error()
