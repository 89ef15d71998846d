"""Turn a target named on the command line into a function that trains: FILE.py:FUNCTION or package.module:FUNCTION."""

from collections.abc import Callable
from typing import Any

from whet.errors import TargetError
from whet.workloads import BUILTIN, BUILTIN_STREAMS
from whet.workloads.user_code import check_arguments, load_function

_FORMS = "FILE.py:FUNCTION or package.module:FUNCTION, a function that trains"


def training_function(target: str) -> Callable[[], Any]:
    """Return the function that `target` names, or raise TargetError where there is none or it needs arguments."""
    check_training_name(target)
    place, _, name = target.rpartition(":")
    function = load_function(place, name, "one that trains")
    check_arguments(function, target)
    return function


def check_training_name(target: str) -> None:
    """Raise TargetError where a name alone shows that it is no training loop; nothing is imported or built."""
    place, colon, name = target.rpartition(":")
    address = target.partition("?")[0]
    if address in BUILTIN or target.startswith("hf:"):
        raise TargetError(f"{target} is a model to run, with no training loop to watch; give {_FORMS}")
    if address in BUILTIN_STREAMS:
        raise TargetError(f"{target} is a stream of frames, with no training loop to watch; give {_FORMS}")
    if not colon or not place or not name:
        raise TargetError(f"{target!r} names no function; give {_FORMS}")
