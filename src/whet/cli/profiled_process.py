"""What `whet profile` says where the process that it looks at ended early."""

from whet.errors import ModelError, WhetError
from whet.measure.isolate import Failure, FailureKind


def error_of(failure: Failure, target: str, done: str) -> WhetError:
    """Why a target could not be looked at to its end. done: what was being done with it, as "profiled"."""
    if failure.kind is not FailureKind.USER:
        return ModelError(f"{target} could not be {done} to its end: {failure.message}")
    return failure.as_error()
