"""Begin to watch or change every Python process that a command under `whet` starts, once it has loaded torch.

`whet monitor`, `whet tune -- COMMAND` and `whet run` put this file first on PYTHONPATH. It uses the standard library
only, and does nothing that could disturb the program: it removes itself from the path, runs the sitecustomize that it
hides, and waits until torch is loaded.
"""

import importlib
import json
import os
import random
import socket
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_SOCKET = os.environ.get("WHET_MONITOR_SOCKET", "")  # of `whet monitor`
_WATCHER = os.environ.get("WHET_MONITOR_MODULE", "")  # what it watches with
_REQUEST = os.environ.get("WHET_SCRIPT_REQUEST", "")  # a directory, of `whet tune` and `whet run`
if os.environ.get("WHET_SCRIPT_STARTER") == str(os.getppid()):
    _REQUEST = ""  # this is a launcher such as torchrun, and trains nothing itself


class _TorchFinder(MetaPathFinder):
    """Begin once torch is loaded. Stay until then, because a program may find torch and not load it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find torch with the other finders, and make its loader begin the watching."""
        if fullname != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._begin_after(spec.loader)
        return spec

    def _begin_after(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_and_begin(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if _SOCKET:
                    _begin_to_watch()
                if _REQUEST:
                    _begin_to_change()

        vars(loader)["exec_module"] = execute_and_begin


def _begin_to_watch() -> None:
    try:
        importlib.import_module(_WATCHER).begin(_SOCKET)
    except Exception as error:  # noqa: BLE001 - the program must go on even if it cannot be watched
        _report(f"{type(error).__name__}: {error} (in {sys.executable})")


def _begin_to_change() -> None:
    try:
        importlib.import_module("whet.scripts.injection.attach").begin(_REQUEST)
    except Exception as error:
        problem = f"whet cannot work inside {sys.executable}: {type(error).__name__}: {error}"
        problem = f"{problem[:2000]}; install whet beside the torch of the script"
        (Path(_REQUEST) / "problem.txt").write_text(problem, encoding="utf-8")
        if "WHET_SCRIPT_STARTER" not in os.environ:  # otherwise whet says it once for all processes
            sys.stderr.write(f"error: {problem}\n")
        raise SystemExit(2) from error


def _report(problem: str) -> None:
    message = {"format": 1, "pid": os.getpid(), "problem": f"steps cannot be seen: {problem}"[:2000]}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2)
            connection.connect(_SOCKET)
            connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass


def _run_the_other() -> None:
    """Run the sitecustomize that this file hides."""
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry) != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if mine is not None:
            sys.modules["sitecustomize"] = mine


try:
    _run_the_other()
finally:  # if it raises, the site module reports the error as usual
    if "WHET_SCRIPT_SEED" in os.environ:
        random.seed(int(os.environ["WHET_SCRIPT_SEED"]))  # for what a script draws before it loads torch
    if _SOCKET or _REQUEST:
        sys.meta_path.insert(0, _TorchFinder())
