"""The other end of `isolate`: call one function with arguments from a file, write its result to a file."""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from whet.errors import WhetError

ARGUMENTS = "arguments.json"
RESULT = "result.json"
LOG = "log.txt"

_PR_SET_PDEATHSIG = 1


def main(function: str, directory: str) -> int:
    _die_with_parent()
    folder = Path(directory)
    arguments = json.loads((folder / ARGUMENTS).read_text(encoding="utf-8"))
    module, _, name = function.partition(":")
    result: dict[str, Any]
    try:
        result = {"value": getattr(importlib.import_module(module), name)(**arguments)}
    except WhetError as error:
        result = {"kind": "user", "type": type(error).__name__, "message": str(error)}
    except MemoryError as error:
        result = {"kind": "memory", "type": "MemoryError", "message": str(error) or "out of memory"}
    except Exception as error:  # noqa: BLE001 - whatever a model or a backend raises is this trial's result
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        result = {"kind": "error", "type": type(error).__name__, "message": f"{type(error).__name__}: {lines[0][:400]}"}
    partial = folder / f"{RESULT}.partial"
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(folder / RESULT)
    sys.stdout.flush()
    sys.stderr.flush()
    # Runtimes' worker threads may hang in their destructors; the result is safe, so leave at once.
    os._exit(0)


def _die_with_parent() -> None:
    """On Linux, have the kernel end this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
