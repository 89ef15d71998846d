"""Name what a process and the child that it starts both know: the files of their exchange, and functions by address."""

from collections.abc import Callable
from typing import Any

from whet.measure.fast_import import import_large

ARGUMENTS = "arguments.json"
RESULT = "result.json"


def function_at(address: str) -> Callable[..., Any]:
    """Return the function of an address, and import its module."""
    module, _, name = address.partition(":")
    function: Callable[..., Any] = getattr(import_large(module), name)
    return function
