"""Check what a target's name alone shows: its form, its options, its file or directory. Nothing heavy is imported.

Commands call `check_name` before they import torch, so that a typing mistake is answered at once.
"""

import ast
import difflib
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qsl, quote, unquote

from whet.errors import MissingExtra, OptionError, StreamTarget, TargetError
from whet.workloads.builtin import BUILTIN, BUILTIN_STREAMS, BUILTIN_TRAINING
from whet.workloads.user_code import check_file, no_function

DEVICES = ("cpu", "cuda")
NAMES = (*BUILTIN, *BUILTIN_TRAINING, *BUILTIN_STREAMS)
FORMS = "FILE.py:FUNCTION, package.module:FUNCTION, hf:DIR or a built-in name (" + ", ".join(BUILTIN) + ")"
_DEVICE, _TRAINING = "device=", "training="
_MAKES_NAMES = {"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__", "import_module"}


@dataclass(frozen=True)
class TargetName:
    """Hold the parts of a target's name, `ADDRESS?device=DEVICE&training=TRAINING`.

    Attributes:
        address: With its other options, such as hf:DIR?batch=8.
        device: As it is given, not checked yet; None for where the target puts its model.
        training: The name of the training that the model came from; "" where none is named.
    """

    address: str
    device: str | None = None
    training: str = ""

    @classmethod
    def read(cls, target: str) -> "TargetName":
        """Return the parts of a name. Of an option that is given twice, the last one counts."""
        address, _, query = target.partition("?")
        given = query.split("&")
        others = [one for one in given if not one.startswith((_DEVICE, _TRAINING))]
        if len(others) == len(given):
            return cls(target)
        own = dict(one.split("=", 1) for one in given if one not in others)
        rest = "&".join(others)
        return cls(f"{address}?{rest}" if rest else address, own.get("device"), unquote(own.get("training", "")))


def with_training(target: str, training: str) -> str:
    """Return a target's name with that of its training, or raise OptionError where it names one already."""
    if TargetName.read(target).training:
        raise OptionError(f"{target} names its training already; leave --training out")
    return f"{target}{'&' if '?' in target else '?'}{_TRAINING}{quote(training, safe='/:.')}"


def check_device(device: str | None) -> None:
    """Raise TargetError for a device on which whet does not measure."""
    if device is not None and device not in DEVICES:
        hint = "; choose a GPU with CUDA_VISIBLE_DEVICES=N" if device.startswith("cuda:") else ""
        raise TargetError(f"device must be one of {', '.join(DEVICES)}, not {device!r}{hint}")


def split_function(target: str) -> tuple[str, str]:
    """Split FILE.py:FUNCTION or package.module:FUNCTION into both parts; raise TargetError where one is missing."""
    place, colon, name = target.rpartition(":")
    if not colon:
        reject(target)
    if not place or not name:
        raise TargetError(f"{target!r} lacks a {'FUNCTION' if place else 'FILE.py or module'}; give {FORMS}")
    return place, name


def check_name(target: str) -> None:
    """Raise TargetError where a name alone shows that there is no such target; nothing is imported or built.

    Raises:
        TargetError: The name is of no known form, its options are wrong, its file or directory is not
            there or cannot be read, or its file has no such function.
        StreamTarget: The name is that of a built-in stream.
        MissingExtra: A package that a built-in workload needs is not installed.
    """
    named = TargetName.read(target)
    if named.training:
        check_name(named.training)
    target = named.address
    name = target.partition("?")[0]
    if name in BUILTIN_STREAMS:
        raise StreamTarget(f"{name} is a stream of frames; whet stream runs it, and whet tune makes it faster")
    check_device(named.device)
    if target in NAMES:
        _check_extra(target)
    elif target.startswith("hf:"):
        _check_huggingface(target.removeprefix("hf:"))
    else:
        place, name = split_function(target)
        if place.endswith(".py"):
            check_file(place)
            _check_defined(place, name)
        else:
            _check_module(place)


def is_training(target: object) -> bool:
    """Return whether a name alone shows that its workload is a training run."""
    name, _, query = target.partition("?") if isinstance(target, str) else ("", "", "")
    if name.startswith("hf:"):
        return asks_for_training(query)
    return name in BUILTIN_TRAINING


def asks_for_training(query: str) -> bool:
    """Return whether the options of hf:DIR, after a question mark, ask for a training run."""
    return any(name == "train" for name, _ in parse_qsl(query, keep_blank_values=True))


def _check_extra(name: str) -> None:
    """Raise MissingExtra where the package that a built-in workload reads its data with is not installed."""
    package, module = ("scikit-learn", "sklearn") if name.startswith("digits-cnn") else ("tokenizers", "tokenizers")
    if find_spec(module) is None:
        raise MissingExtra(package, "examples", f"loading the data of {name}")


def _check_huggingface(directory_and_options: str) -> None:
    """Raise TargetError where there is no such directory, or an option is wrong."""
    from whet.workloads import huggingface_options as options  # pydantic, which other targets do without

    directory, _, query = directory_and_options.partition("?")
    if asks_for_training(query):
        options.check_training(directory_and_options)
        return
    if not directory:
        raise TargetError("hf: lacks a directory: hf:DIR")
    options.check_directory(Path(directory).expanduser())
    options.parse_options(query)


def _check_defined(file: str, name: str) -> None:
    """Raise TargetError where a file surely binds no such name. A file that may make names as it runs passes."""
    tree = ast.parse(Path(file).expanduser().read_bytes())
    seen: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            seen |= {node.name, node.asname or node.name.partition(".")[0]}
        for field in ("id", "name", "attr"):
            if isinstance(found := getattr(node, field, None), str):
                seen.add(found)
    if name in seen or "*" in seen or seen & _MAKES_NAMES:
        return
    own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    raise TargetError(no_function(file, name, own))


def _check_module(name: str) -> None:
    """Raise TargetError where no module of this dotted name is in the working directory or installed."""
    path: list[str] | None = [str(Path.cwd()), *sys.path]
    parts = name.split(".")
    for number in range(len(parts)):
        whole = ".".join(parts[: number + 1])
        if whole in sys.modules or whole in sys.builtin_module_names:
            found = getattr(sys.modules.get(whole), "__spec__", None)
        else:
            found = PathFinder.find_spec(whole, path)
            if found is None and number == 0:
                found = find_spec(whole)  # finders of editable installations
        if found is None and number == 0:
            hint = f" (for a file, write {name}.py:FUNCTION)" if Path(f"{name}.py").is_file() else ""
            raise TargetError(f"no module named {whole!r} in {Path.cwd()} or among those installed{hint}")
        if found is None or found.submodule_search_locations is None:
            return  # a package may make its modules as it is imported
        path = list(found.submodule_search_locations)


def reject(target: str) -> NoReturn:
    """Raise TargetError with a hint for a target that names nothing."""
    if target.endswith(".py"):
        hint = f"add the function that builds the workload: {target}:FUNCTION"
    elif target.partition("?")[0] in NAMES:
        hint = f"a built-in workload takes one option: {target.partition('?')[0]}?device=cuda"
    elif target and Path(target).is_dir():
        hint = f"for a Hugging Face directory, write hf:{target}"
    else:
        close = difflib.get_close_matches(target, NAMES, n=1)
        hint = f"did you mean {close[0]}? If not, " if close else ""
        hint += f"give {FORMS}"
    raise TargetError(f"no target is named {target!r}; {hint}")
