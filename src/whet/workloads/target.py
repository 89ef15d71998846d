"""How what is named on the command line becomes a Workload.

A built-in name (digits-cnn), a Hugging Face directory (hf:DIR), or a function of the user's own
(FILE.py:FUNCTION, package.module:FUNCTION) that takes no arguments and returns a Workload, (model, inputs) or
(model, inputs, Quality).
"""

import dataclasses
import difflib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from torch import Tensor, nn

from whet.errors import TargetError, WhetError, reason
from whet.workload import Quality, Workload
from whet.workloads import BUILTIN, huggingface
from whet.workloads.sizes import checked_sizes, resized

_FORMS = "FILE.py:FUNCTION, package.module:FUNCTION, hf:DIR or a built-in name (" + ", ".join(BUILTIN) + ")"
_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))
_RETURNS = "a whet.Workload, (model, inputs) or (model, inputs, Quality)"


def resolve(target: str, sizes: Mapping[str, int] = MappingProxyType({})) -> Workload:
    """The workload that `target` names.

    sizes: of `batch` (samples) and `seq` (tokens), where not the workload's own. A function that has parameters of
    these names is called with them; else its first batch is cut or repeated.

    Raises TargetError, with what was wrong and what to do, where there is none; MissingExtra where an optional package
    that it needs is not installed.
    """
    sizes = checked_sizes(sizes)
    if target in BUILTIN:
        return resized(import_module(f"whet.workloads.{target.replace('-', '_')}").build(), **sizes)
    if target.startswith("hf:"):
        return huggingface.build(target.removeprefix("hf:"), sizes)
    place, colon, name = target.rpartition(":")
    if not colon:
        _reject(target)
    if not place or not name:
        raise TargetError(f"{target!r} lacks a {'FUNCTION' if place else 'FILE.py or module'}; give {_FORMS}")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    function = _function(module, name, place)
    taken = _parameters_of(function)
    workload = _call(function, name, place, {size: value for size, value in sizes.items() if size in taken})
    return resized(workload, **{size: value for size, value in sizes.items() if size not in taken})


def _reject(target: str) -> NoReturn:
    if target.endswith(".py"):
        hint = f"add the function that builds the workload: {target}:FUNCTION"
    elif target and Path(target).is_dir():
        hint = f"for a Hugging Face directory, write hf:{target}"
    else:
        close = difflib.get_close_matches(target, BUILTIN, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        hint += f"Give {_FORMS}"
    raise TargetError(f"no workload is named {target!r}; {hint}")


def _load_file(name: str) -> ModuleType:
    """Import a file under its own stem, its directory first on the path, as `python FILE.py` would have it."""
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise TargetError(f"no file {name}" + ("" if Path(name).is_absolute() else f" in {Path.cwd()}"))
    taken = sys.modules.get(path.stem)
    if taken is not None and not _is_file_of_users(taken):
        raise TargetError(f"{name} has the name of a module in use, {path.stem!r}; rename the file")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = module_from_spec(spec)
    module.__dict__["__whet_target__"] = True
    _prefer(path.parent)
    sys.modules[path.stem] = module  # before it runs, as import does: dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise TargetError(f"importing {name} failed: {_what_and_where(error)}") from error
    return module


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
        raise TargetError(f"importing {name} failed: {_what_and_where(error)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"importing {name} failed: {_what_and_where(error)}") from error


def _prefer(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _is_file_of_users(module: ModuleType) -> bool:
    """Whether whet loaded it from a file: such a one may be loaded again, or give way to another file of its name."""
    return hasattr(module, "__whet_target__")


def _function(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if _is_own_function(value, module)]
        listed = f"it has {', '.join(own)}" if own else "it defines no function"
        close = difflib.get_close_matches(name, own, n=1)
        raise TargetError(
            f"{place} has no function {name!r}; {listed}" + (f" (did you mean {close[0]}?)" if close else "")
        )
    if not callable(found) or isinstance(found, nn.Module):
        raise TargetError(
            f"{place}:{name} is of type {type(found).__name__}, not a function; give one that returns {_RETURNS}"
        )
    function: Callable[..., Any] = found
    return function


def _is_own_function(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def _call(function: Callable[..., Any], name: str, place: str, given: Mapping[str, int]) -> Workload:
    needed = [
        p.name
        for p in _parameters_of(function).values()
        if p.name not in given and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise TargetError(
            f"{place}:{name} needs arguments ({', '.join(needed)}); whet calls it without any: give them defaults, or "
            "write a function that calls it"
        )
    try:
        returned = function(**given)
    except WhetError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{place}:{name} raised {_what_and_where(error)}") from error
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return _as_workload(returned, f"{place}:{name}", f"{stem}.{name}")


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What a function takes, by name. A builtin need not say."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def _as_workload(returned: Any, source: str, default_name: str) -> Workload:
    """A function's return value as a workload, named for the function where it has no name of its own."""
    if isinstance(returned, Workload):
        unnamed = returned.name == Workload.name
        return dataclasses.replace(returned, name=default_name) if unnamed else returned
    if not isinstance(returned, tuple) or len(returned) not in (2, 3) or not isinstance(returned[0], nn.Module):
        raise TargetError(f"{source} returned {_describe(returned)}; it must return {_RETURNS}")
    model, inputs, *rest = returned
    if isinstance(inputs, Tensor | Mapping):
        inputs = [inputs]  # one batch
    if rest and not isinstance(rest[0], Quality):
        raise TargetError(f"{source} returned a {type(rest[0]).__name__} in third place; it must be a whet.Quality")
    return Workload(model=model.eval(), inputs=inputs, quality=rest[0] if rest else None, name=default_name)


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(type(item).__name__ for item in value) + ")"
    hint = " (is a return statement missing?)" if value is None else ""
    name = type(value).__name__
    article = "" if value is None else "an " if name[0].lower() in "aeiou" else "a "
    return f"{article}{name}{hint}"


def _what_and_where(error: BaseException) -> str:
    """`ValueError: no such thing (line 3 of model.py)`: the deepest line that is the user's own, if there is one."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno} of {Path(error.filename or '').name})"
    said = reason(error)
    what = type(error).__name__ + (f": {said}" if said != type(error).__name__ else "")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    return f"{what} (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else what


def _is_library(filename: str) -> bool:
    return filename.startswith(("<", *_LIBRARIES))
