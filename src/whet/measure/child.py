"""Run in the process that `isolate` starts: call a function with arguments from a file, write its result to a file."""

import ctypes
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel

from whet.errors import WhetError, is_out_of_memory, reason
from whet.measure.exchange import ARGUMENTS, RESULT, function_at

_PR_SET_PDEATHSIG = 1


def main(function: str, directory: str) -> int:
    """Call the function at "package.module:name" with the arguments in a directory, and write its result there.

    Then end the process at once, with exit code 0. It is killed when its parent ends.
    """
    ending_with_parent(signal.SIGKILL)()
    folder = Path(directory)
    arguments = json.loads((folder / ARGUMENTS).read_text(encoding="utf-8"))
    partial = folder / f"{RESULT}.partial"
    partial.write_text(_call(function, arguments), encoding="utf-8")
    partial.replace(folder / RESULT)
    sys.stdout.flush()
    sys.stderr.flush()
    # Runtimes' worker threads may hang in their destructors; the result is safe, so leave at once.
    os._exit(0)


def _call(function: str, arguments: dict[str, Any]) -> str:
    """Return the function's value, or the exception that it raised, as JSON."""
    try:
        value = called(function_at(function), arguments)
        if isinstance(value, BaseModel):
            return json.dumps({"value": value.model_dump(mode="json")})
        if not isinstance(value, dict | None):
            raise TypeError(f"{function} must return a model, a dict or nothing, not {type(value).__name__}")
        return json.dumps({"value": value or {}})
    except WhetError as error:
        kind = "memory" if is_out_of_memory(error.__cause__) else "user"
        failure = {"kind": kind, "type": type(error).__name__, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a model or a backend raises is this trial's result
        traceback.print_exc()
        kind = "memory" if is_out_of_memory(error) else "error"
        message = f"{type(error).__name__}: {reason(error)[:400]}"
        failure = {"kind": kind, "type": type(error).__name__, "message": message}
    return json.dumps(failure)


def called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function with the pydantic model that its one parameter is, or with its arguments by name."""
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) == 1:
        kind = get_type_hints(function).get(parameters[0])
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return function(kind.model_validate(arguments))
    return function(**arguments)


def ending_with_parent(by: signal.Signals) -> Callable[[], None]:
    """Return a function that lets the kernel (Linux only) send this process a signal when its parent ends.

    Call it in the child. Everything that it needs is looked up before, since little is safe between fork and exec.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def ask() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, by)

    return ask


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
