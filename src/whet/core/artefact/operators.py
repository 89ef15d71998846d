"""Find, record and load custom operators: operators that neither PyTorch nor a loaded artefact registers by itself.

The manifest records which operators a graph calls, and what registered them while the model was tuned: a shared library
or a Python module. It alone causes nothing to be loaded: the caller of `whet.load` names what to load.
"""

import importlib
import mmap
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, StringConstraints
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from whet.errors import ArtefactError, OptionError, TargetError, foreign, named_reason
from whet.kernels.register import BUILT_IN, OWN, origin

Library = str | os.PathLike[str]
"""The path of a shared library or a Python file, or the import name of a Python module."""

_KERNELS = ("causal_conv", "cross_entropy", "gated_mlp", "linear", "paged_attention", "sample", "selective_scan")
OWN_MODULES = tuple(f"whet.kernels.{name}" for name in _KERNELS)
"""The modules that register whet's own operators."""
_SHARED = re.compile(r".+\.(so(\.\d+)*|dylib|dll|pyd)")
_IMPORT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PLACE = re.compile(r"^debug: registered at (.+\.py):\d+", re.MULTILINE)
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib"))
_TORCH = Path(torch.__file__).parent

_Name = Annotated[str, StringConstraints(pattern=r"^[\w.+/-]+$")]
_Operator = Annotated[str, StringConstraints(pattern=r"^\w+::\w+(\.\w+)?$")]


class OperatorSource(BaseModel, extra="forbid"):
    """Record custom operators of an artefact, and what registered them while the model was tuned.

    Attributes:
        kind: "library" for a shared library, "module" for a Python module, "unknown" where neither was found.
        name: The library's file name, or the module's import name or file name. Empty where unknown.
        operators: Qualified names, as "namespace::operator" or "namespace::operator.overload".
    """

    kind: Literal["library", "module", "unknown"]
    name: _Name | Literal[""] = ""
    operators: list[_Operator]


@dataclass(frozen=True)
class _Provider:
    """Describe what registers operators. `library` is what load_libraries takes for it."""

    kind: Literal["library", "module", "unknown"]
    name: str = ""
    library: str = ""


def custom_operators(targets: Iterable[Any]) -> list[str]:
    """Return the qualified names of those operators among a graph's targets that are custom, sorted."""
    names = {target.name() for target in targets if isinstance(target, OpOverload)}
    return sorted(name for name in names if name.partition("::")[0] not in BUILT_IN)


def sources_of(operators: Sequence[str]) -> list[OperatorSource]:
    """Return what has registered these operators in this process, for a manifest. It names no directory."""
    return [
        OperatorSource(kind=provider.kind, name=provider.name, operators=names)
        for provider, names in _providers(operators).items()
    ]


def libraries_of(sources: Sequence[OperatorSource]) -> list[str]:
    """Return what another process must hand to `load_libraries`, with full paths.

    Raises:
        TargetError: Neither a module nor a library is known that registers one of the operators.
    """
    operators = [name for source in sources for name in source.operators if not _is_own(name)]
    providers = _providers(operators)
    if unknown := providers.get(_Provider("unknown")):
        raise TargetError(
            f"no module or shared library is known that registers the custom operator {unknown[0]}, so no other "
            "process could load a model that calls it; register it in a module of its own"
        )
    return [provider.library for provider in providers]


def loaded_libraries() -> list[str]:
    """Return the shared libraries of operators that were loaded by path here, save for those of installed packages."""
    return sorted(path for path in torch.ops.loaded_libraries if not _is_installed(Path(path)))


def load_libraries(libraries: Sequence[Library], sources: Sequence[OperatorSource] = ()) -> None:
    """Load what registers custom operators: shared libraries and Python modules that the caller has named.

    Args:
        libraries: Paths of shared libraries (.so, .dylib, .dll, .pyd) or of Python files (.py), or import names of
            Python modules. Each path must be an existing file: no directory is searched for it.
        sources: The custom operators that are wanted. A shared library whose operators among these are registered
            already is passed over, since PyTorch ends a process that registers an operator twice.

    Raises:
        OptionError: An entry is none of these.
        ArtefactError: A library or a module does not exist or cannot be loaded.
    """
    if isinstance(libraries, str | bytes | os.PathLike) or not isinstance(libraries, Sequence):
        raise OptionError(f"libraries must be a list, as libraries=[{libraries!r}]")
    for entry in libraries:
        if not isinstance(entry, str | os.PathLike) or not isinstance(name := os.fspath(entry), str):
            raise OptionError(f"libraries must hold paths and import names, not {entry!r}")
        path = Path(name).expanduser()
        with foreign(ArtefactError, f"libraries: {name} cannot be loaded", words=named_reason):
            if _SHARED.fullmatch(path.name):
                if not _is_superfluous(_existing(path), sources):
                    torch.ops.load_library(str(_existing(path)))
            elif path.suffix == ".py":
                _load_file(_existing(path))
            elif isinstance(entry, str) and _IMPORT_NAME.fullmatch(name):
                importlib.import_module(name)
            else:
                raise OptionError(
                    f"libraries: {name!r} is neither a shared library (.so) nor a Python file (.py) nor the import "
                    "name of a module"
                )


def _is_superfluous(path: Path, sources: Sequence[OperatorSource]) -> bool:
    """Return whether a shared library holds a wanted operator that is already registered and implemented."""
    for operator in (name for source in sources for name in source.operators if _is_registered(name)):
        qualified = operator.partition(".")[0]
        if torch._C._dispatch_has_kernel(qualified) and all(_mentions(path, part) for part in qualified.split("::")):
            return True
    return False


def load_own(sources: Sequence[OperatorSource]) -> None:
    """Register whet's own operators where an artefact needs any of them."""
    if any(_is_own(name) for source in sources for name in source.operators):
        for module in OWN_MODULES:
            importlib.import_module(module)


def _is_own(operator: str) -> bool:
    return operator.partition("::")[0] == OWN


def check_registered(directory: Path, sources: Sequence[OperatorSource]) -> None:
    """Raise ArtefactError where an artefact needs operators that this process does not have, and name what has them."""
    missing = [
        OperatorSource(kind=source.kind, name=source.name, operators=lacking)
        for source in sources
        if (lacking := [name for name in source.operators if not _is_registered(name)])
    ]
    if not missing:
        return
    if gone := [name for source in missing for name in source.operators if _is_own(name)]:
        raise ArtefactError(
            f"{directory} was saved by another version of whet, which had the operators {', '.join(gone)}; this one "
            "does not: tune the model again, or load it with the version that saved it"
        )
    operators = ", ".join(name for source in missing for name in source.operators)
    places = [f"{source.name} ({source.kind})" for source in missing if source.name]
    found = f"; the tuning run found them in {', '.join(places)}" if places else ""
    given = ", ".join(repr(f"PATH/{s.name}" if _is_file(s) else s.name) for s in missing if s.name) or "PATH_OR_MODULE"
    raise ArtefactError(
        f"{directory} needs custom operators that are not registered in this process: {operators}{found}. Name what "
        f"registers them: whet.load(DIR, libraries=[{given}])"
    )


def _is_file(source: OperatorSource) -> bool:
    return source.kind == "library" or source.name.endswith(".py")


def _is_registered(operator: str) -> bool:
    namespace, _, name = operator.partition("::")
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return found is not None and (overload or "default") in found.overloads()


def _providers(operators: Sequence[str]) -> dict[_Provider, list[str]]:
    found: dict[_Provider, list[str]] = {}
    for operator in operators:
        for provider in _named(operator) or [_provider(operator)]:
            found.setdefault(provider, []).append(operator)
    return found


def _named(operator: str) -> list[_Provider]:
    """Return what registered an operator by whet.register_kernel: its libraries, or else a module."""
    known = origin(operator.partition(".")[0])
    if known is None:
        return []
    module, libraries = known
    if not libraries:
        return [_module_provider(sys.modules[module]) if module in sys.modules else _Provider("unknown")]
    return [
        _Provider("library" if _SHARED.fullmatch(Path(name).name) else "module", _shown(Path(name)), name)
        if Path(name).is_absolute()
        else _Provider("module", name, name)
        for name in libraries
    ]


def _provider(operator: str) -> _Provider:
    """Find what registered an operator, as a Python module or else as a shared library that holds its name."""
    qualified = operator.partition(".")[0]
    module = _defining_module(qualified)
    if module is not None:
        return _module_provider(module)
    namespace, _, name = qualified.partition("::")
    loaded = [Path(path) for path in torch.ops.loaded_libraries]
    extensions = {Path(m.__file__): m for m in _modules() if m.__file__ and _SHARED.fullmatch(Path(m.__file__).name)}
    best: tuple[tuple[bool, bool], Path] | None = None
    for path in dict.fromkeys([*loaded, *extensions]):
        if path.is_relative_to(_TORCH) or not path.is_file() or not _mentions(path, name):
            continue
        score = (_mentions(path, namespace), path in loaded)
        if any(score) and (best is None or score > best[0]):
            best = score, path
    if best is None:
        return _Provider("unknown")
    path = best[1]
    if path in extensions and path not in loaded and _is_installed(path):
        return _module_provider(extensions[path])
    return _Provider("library", _shown(path), str(path.resolve()))


def _defining_module(qualified: str) -> ModuleType | None:
    definition = OPDEFS.get(qualified)
    if definition is not None:
        function = definition._init_fn
        holders = [m for m in _modules() if any(value is definition for value in vars(m).values())]
        named = sys.modules.get(getattr(function, "__module__", ""))
        return named if named in holders or not holders else holders[0]
    place = _PLACE.search(torch._C._dispatch_dump(qualified))
    if place is None:
        return None
    return next((m for m in _modules() if m.__file__ and Path(m.__file__) == Path(place[1])), None)


def _module_provider(module: ModuleType) -> _Provider:
    """Name a module by its file where it is a user's own file, else by its import name."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__" or file is None:
        return _Provider("unknown")
    path = Path(file)
    if "." in name or _is_installed(path) or path.name == "__init__.py":
        return _Provider("module", name, name)
    kind: Literal["library", "module"] = "library" if _SHARED.fullmatch(path.name) else "module"
    return _Provider(kind, _shown(path), str(path.resolve()))


def _modules() -> Iterator[ModuleType]:
    """Yield the modules of this process that have a file. Lazy stand-ins for modules are left out."""
    for module in list(sys.modules.values()):
        if type(module) is ModuleType and isinstance(module.__dict__.get("__file__"), str):
            yield module


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in _INSTALLED)


def _shown(path: Path) -> str:
    """Return a library's name without this machine's directories; its path within an installed package, if any."""
    packages = [place for place in _INSTALLED if path.is_relative_to(place)]
    shown = path.relative_to(packages[0]).as_posix() if packages else path.name
    return re.sub(r"[^\w.+/-]", "_", shown)


def _mentions(path: Path, text: str) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text.encode()) >= 0
    except (OSError, ValueError):  # an empty file cannot be mapped
        return False


def _existing(path: Path) -> Path:
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ArtefactError(f"libraries: there is no file {path}{where}; give the path of what registers the operators")
    return path.resolve()


def _load_file(path: Path) -> None:
    """Run a Python file as a module, once in this process. Its directory is on the path meanwhile.

    The module goes by the file's stem, so that a later `import` of it does not register its operators again.
    """
    if any(Path(m.__dict__["__file__"]).resolve() == path for m in _modules()):
        return
    spec = spec_from_file_location(path.stem if _is_name_of(path) else f"_whet_library_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # every .py file has a loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    finally:
        sys.path.remove(str(path.parent))


def _is_name_of(path: Path) -> bool:
    """Return whether `import STEM` would import exactly this file, or nothing."""
    if not path.stem.isidentifier() or path.stem in sys.modules:
        return False
    spec = find_spec(path.stem)
    return spec is None or (spec.origin is not None and Path(spec.origin).resolve() == path)
