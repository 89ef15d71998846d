"""Load the user's own code that the command line names: FILE.py:FUNCTION or package.module:FUNCTION."""

import difflib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from whet.errors import TargetError, memory_shortage, reason

_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))


def load_function(place: str, name: str, wanted: str) -> Callable[..., Any]:
    """Return the function `name` of a file or a module.

    Args:
        place: A path that ends in .py, or a module's dotted name.
        wanted: What the function should be, in words for error messages.

    Raises:
        TargetError: There is no such function, or importing it fails; the message says what to do.
    """
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    return _function(module, name, place, wanted)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name. It is empty for a builtin that does not declare them."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def check_arguments(function: Callable[..., Any], target: str, given: Collection[str] = ()) -> None:
    """Raise TargetError where a function that a target names needs other arguments than those that are given."""
    needed = [
        p.name
        for p in parameters_of(function).values()
        if p.name not in given and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise TargetError(
            f"{target} needs arguments ({', '.join(needed)}); whet calls it without any: give them defaults, or write "
            "a function that calls it"
        )


def what_and_where(error: BaseException) -> str:
    """Return `ValueError: no such thing (line 3 of model.py)`, with the deepest line that is the user's own, if any."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno} of {Path(error.filename or '').name})"
    said = memory_shortage(reason(error))
    what = type(error).__name__ + (f": {said}" if said != type(error).__name__ else "")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    return f"{what} (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else what


def check_file(name: str) -> None:
    """Raise TargetError where a Python file that a target names is not there, or is no Python. Nothing is run."""
    if not Path(name).expanduser().is_file():
        where = "" if Path(name).is_absolute() else f" in {Path.cwd()}"
        raise TargetError(f"no file {name}{where}; give the path of a Python file, as FILE.py:FUNCTION")
    try:
        compile(Path(name).expanduser().read_bytes(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError) as error:
        raise TargetError(f"importing {name} failed: {what_and_where(error)}") from error


def no_function(place: str, name: str, own: Sequence[str]) -> str:
    """Return the message for a function that a file or a module lacks; `own` holds the public functions it has."""
    listed = f"it has {', '.join(own)}" if own else "it defines no function"
    close = difflib.get_close_matches(name, own, n=1)
    return f"{place} has no function {name!r}; {listed}" + (f" (did you mean {close[0]}?)" if close else "")


def _load_file(name: str) -> ModuleType:
    """Import a file under its own stem.

    Its directory comes first on the path, as with `python FILE.py`; the current directory comes last.
    """
    check_file(name)
    path = Path(name).expanduser().resolve()
    taken = sys.modules.get(path.stem)
    # A file that whet loaded may be loaded again or replaced.
    if taken is not None and not hasattr(taken, "__whet_target__"):
        raise TargetError(f"{name} has the name of a module in use, {path.stem!r}; rename the file")
    spec = spec_from_file_location(path.stem, path, loader=_SourceLoader(path.stem, str(path)))
    assert spec is not None and spec.loader is not None  # the loader was passed above
    module = module_from_spec(spec)
    module.__dict__["__whet_target__"] = True
    _prefer(path.parent)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    sys.modules[path.stem] = module  # import also sets this before the module runs: dataclasses and pickle need it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise TargetError(f"importing {name} failed: {what_and_where(error)}") from error
    return module


class _SourceLoader(SourceFileLoader):
    """Load source without bytecode.

    Python would take old bytecode for current if the file is rewritten within a second at the same size.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _load_module(name: str) -> ModuleType:
    """Import a module by its dotted name; the current directory is on the path."""
    _prefer(Path.cwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            hint = f" (for a file, write {name}.py:FUNCTION)" if Path(f"{name}.py").is_file() else ""
            raise TargetError(f"no module named {missing!r} in {Path.cwd()} or among those installed{hint}") from error
        raise TargetError(f"importing {name} failed: {what_and_where(error)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"importing {name} failed: {what_and_where(error)}") from error


def _prefer(directory: Path) -> None:
    """Put a directory first on Python's path, if it is not there yet."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _function(module: ModuleType, name: str, place: str, wanted: str) -> Callable[..., Any]:
    """Return a module's function, or raise TargetError with the functions that it has."""
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if _is_own_function(value, module)]
        raise TargetError(no_function(place, name, own))
    from torch import nn  # the user's code has imported it; checking a file's name needs none of it

    if not callable(found) or isinstance(found, nn.Module):
        raise TargetError(f"{place}:{name} is of type {type(found).__name__}, not a function; give {wanted}")
    function: Callable[..., Any] = found
    return function


def _is_own_function(value: object, module: ModuleType) -> bool:
    """Return whether a value is a public function that the module itself defines."""
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _is_library(filename: str) -> bool:
    """Return whether a file belongs to Python, to installed packages or to whet."""
    return filename.startswith(("<", *_LIBRARIES))
