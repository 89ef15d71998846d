"""Find the line of the user's own code that is running: the innermost frame that belongs to no library."""

import linecache
import os
import sys
import sysconfig
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import torch

_PATHS = sysconfig.get_paths()
_STANDARD = tuple({_PATHS["stdlib"] + os.sep, _PATHS["platstdlib"] + os.sep})
_PACKAGES = tuple({_PATHS["purelib"] + os.sep, _PATHS["platlib"] + os.sep})
_TORCH = str(Path(torch.__file__).parent) + os.sep
_WHET = str(Path(__file__).parents[1]) + os.sep
_WHET_MODELS = (_WHET + "models" + os.sep, _WHET + "workloads" + os.sep)  # what is profiled, not what profiles

_USER, _LIBRARY, _HIDDEN = range(3)


@dataclass(frozen=True)
class Line:
    """Describe a line of code. Its number is 0 where there is none."""

    file: str
    number: int
    function: str

    @property
    def text(self) -> str:
        """Return the line's text, or "" where the source is not available."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        """Return the line as "model.py:31 (forward)", with the path relative to the working directory if possible."""
        if not self.number:  # no line at all
            return self.file
        path = Path(self.file)
        shown = path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path
        where = str(shown) if len(shown.parts) <= 3 else str(Path("…", *shown.parts[-3:]))
        return f"{where}:{self.number} ({self.function})"


UNKNOWN = Line("a line that is not known", 0, "")
BEFORE = Line("made before the profile: weights, inputs", 0, "")


def user_line(frame: FrameType | None) -> Line:
    """Return the innermost line of the user's own code that `frame` was called from, or else a library's line.

    A thread that no user code has started (autograd's, on CUDA) is attributed to the main thread's line.
    """
    found = _innermost(frame)
    if found is None and threading.current_thread() is not threading.main_thread():
        found = _innermost(sys._current_frames().get(threading.main_thread().ident or 0))
    if found is None:
        return UNKNOWN
    return _line(found.f_code.co_filename, found.f_lineno or 0, found.f_code.co_name)


def who_asked(frame: FrameType | None) -> tuple[bool, set[str]]:
    """Return whether the user's or a library's code called `frame`, and the standard modules passed on the way.

    The first is False where torch's or whet's own code is met before: what these do is not the user's doing.
    """
    through: set[str] = set()
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_standard(file):
            return not is_torch(file) and _kind(file) != _HIDDEN, through
        through.add(frame.f_globals.get("__name__", "").partition(".")[0])
        frame = frame.f_back
    return False, through


def is_torch(file: str) -> bool:
    """Return whether a file is torch's, or code that torch has written."""
    return file.startswith((_TORCH, "<eval_with_key"))


def is_standard(file: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and not file.startswith(_PACKAGES))


def _innermost(frame: FrameType | None) -> FrameType | None:
    library = None
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == _USER:
            return frame
        if kind == _LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    return library


@cache
def _kind(file: str) -> int:
    """Return whether a file is the user's, a library's (shown where there is no user's), or hidden.

    Files of torch, Python and whet itself are hidden.
    """
    if file.startswith(("<frozen", "<eval_with_key", "<__array_function__")):
        return _HIDDEN
    if file.startswith(_WHET_MODELS):
        return _USER
    if file.startswith((_TORCH, _WHET)):
        return _HIDDEN
    if file.startswith(_PACKAGES) or f"{os.sep}site-packages{os.sep}" in file:
        return _LIBRARY
    return _HIDDEN if file.startswith(_STANDARD) else _USER


@cache
def _line(file: str, number: int, function: str) -> Line:
    return Line(file, number, function)
