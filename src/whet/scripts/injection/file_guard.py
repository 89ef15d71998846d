"""Keep a script's run from changing files outside its copy: refuse to open them for writing, to remove or rename them.

A copy holds links to large files. A link that the script opens for writing is replaced by a file of its own first.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch

from whet.profiling.step.patching import Patches

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,), "os.mkdir": (0,), "os.truncate": (0,)}
_CACHES = ("HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_SYSTEM = ("/dev", "/proc", "/sys", "/run")


class FileGuard:
    """Check what this process writes to.

    Args:
        writable: The directories that hold the run's own files, such as the script's copy.
        protected: The directory that holds the user's own, of which the copy was made.
        refuse: Ends the process with the reason.
    """

    def __init__(self, writable: Iterable[str], protected: str, refuse: Callable[[str], NoReturn]) -> None:
        caches = [Path.home() / name for name in (".cache", ".config", ".triton", ".nv", ".local")]
        caches += [Path(os.environ[name]) for name in _CACHES if os.environ.get(name)]
        self._own = _resolved([*map(Path, writable), *caches, Path(sys.prefix), Path(sys.base_prefix)])
        self._own += _SYSTEM
        self._protected = _resolved([Path(protected)])
        self._others = [*_resolved([Path(tempfile.gettempdir()), Path("/tmp")]), *_SYSTEM]
        self._refuse = refuse

    def begin(self, patches: Patches) -> None:
        """Check from now on whatever Python, torch.save and safetensors open, until the process ends."""
        sys.addaudithook(self._seen)
        save = torch.save  # both write in compiled code, where no audit hook sees it

        def saving(thing: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                self._opens(os.fspath(f))
            return save(thing, f, *args, **kwargs)

        def saving_tensors(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            self._opens(os.fspath(filename))
            return save_file(tensors, filename, *args, **kwargs)

        save_file = safetensors.torch.save_file
        patches.set(torch, "save", saving)
        patches.set(safetensors.torch, "save_file", saving_tensors)

    def _seen(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            is_writing = any(c in mode for c in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
            if is_writing and isinstance(path, str | bytes | os.PathLike):
                self._opens(os.fsdecode(path))
        elif event in _CHANGES:
            for place in _CHANGES[event]:
                path = args[place]
                if isinstance(path, str | bytes | os.PathLike):
                    whole = Path(os.fsdecode(path)).absolute()
                    self._check(whole.parent.resolve() / whole.name, os.fsdecode(path))

    def _opens(self, path: str) -> None:
        """Check a path that is opened for writing, and replace a link in the copy by a file."""
        place = Path(path).absolute()
        target = place.resolve()
        if place.is_symlink() and self._is_allowed(place.parent.resolve()) and not self._is_allowed(target):
            if target.is_file():
                place.unlink()
                shutil.copy2(target, place)
            return
        self._check(target, path)

    def _check(self, target: Path, named: str) -> None:
        if not self._is_allowed(target):
            self._refuse(
                f"the script writes to {named}, which lies outside its working directory and would change your files; "
                "give it a relative path for what it writes"
            )

    def _is_allowed(self, target: Path) -> bool:
        if _is_below(target, self._own):
            return True
        return not _is_below(target, self._protected) and _is_below(target, self._others)


def _resolved(paths: Iterable[Path]) -> list[str]:
    return [str(path.resolve()) for path in paths]


def _is_below(target: Path, places: Iterable[str]) -> bool:
    text = str(target)
    return any(text == place or text.startswith(f"{place.rstrip(os.sep)}{os.sep}") for place in places)
