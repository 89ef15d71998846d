"""The lists of other libraries' names against whet's code and against the PyTorch that is installed."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import whet
from foreign_names import PATCHED, PRIVATE
from whet.profiling.step.patches import patch_all_loops, patch_optimizer, patch_torch
from whet.profiling.step.patching import Patches

SOURCES = Path(whet.__file__).parent


def found(name: str) -> Any:
    """What a dotted name means."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:i]))
        except ImportError:
            continue
        for part in parts[i:]:
            value = getattr(value, part)
        return value
    raise ImportError(name)


@pytest.mark.parametrize("name", [*PATCHED, *PRIVATE])
def test_the_installed_torch_has_the_name(name: str) -> None:
    of_instances = name.endswith("._compiled_call_impl")  # whose class alone can be found
    assert found(name.rpartition(".")[0] if of_instances else name) is not None


def test_what_is_patched_takes_what_the_wrappers_pass_on() -> None:
    """The wrappers read these arguments by position or by name."""
    assert next(iter(inspect.signature(torch.autograd.backward).parameters)) == "tensors"
    assert list(inspect.signature(torch.amp.GradScaler.scale).parameters) == ["self", "outputs"]
    assert list(inspect.signature(torch.amp.GradScaler.step).parameters)[:2] == ["self", "optimizer"]
    assert isinstance(found("torch._inductor.constant_folding._dont_constant_fold"), list)


class Recorded(Patches):
    """Notes what is patched, and patches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def set(self, owner: Any, name: str, value: Any) -> None:
        self.names.add(f"{dotted(owner)}.{name}")

    def add_handle(self, handle: Any) -> None:
        handle.remove()


def dotted(owner: Any) -> str:
    return owner.__name__ if inspect.ismodule(owner) else f"{owner.__module__}.{owner.__qualname__}"


def test_the_watcher_patches_nothing_else() -> None:
    import_module("torch.distributed._functional_collectives")
    from whet.profiling.step.log import StepLog

    patches, log = Recorded(), StepLog(None, "cpu")
    patch_torch(patches, log, None)
    patch_all_loops(patches, log)
    listed = {id(found(name.rpartition(".")[0])): name.rpartition(".")[0] for name in PATCHED}
    for name in patches.names:
        owner, _, attribute = name.rpartition(".")
        known = listed.get(id(found(owner)))
        assert known is not None, f"{name} is patched and not listed"
        assert f"{known}.{attribute}" in PATCHED, f"{name} is patched and not listed"
    assert callable(patch_optimizer)


def private_names(path: Path) -> Iterator[str]:
    """The longest private names of torch that a file uses."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            parts: list[str] = []
            value: ast.expr = node
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id == "torch":
                yield ".".join(["torch", *reversed(parts)])


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_every_private_name_that_is_used_is_listed() -> None:
    used = {name for path in SOURCES.rglob("*.py") for name in private_names(path) if is_private(name)}
    unlisted = {name for name in used if not any(name == known or name.startswith(f"{known}.") for known in PRIVATE)}
    assert unlisted <= {name.rpartition(".")[0] for name in PRIVATE}, unlisted
