"""Check TorchScript models: whether calling one changes its state, which no saved graph would do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from whet.errors import ModelError, reason


@contextmanager
def stateless(model: nn.Module) -> Iterator[None]:
    """Watch a ScriptModule while it is called. Modules of other kinds are not checked.

    Raises:
        ModelError: Its forward changes its own attributes, parameters or buffers.
    """
    scripted = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    changed = {name for module in scripted for name in _assigned(module)}
    before = _versions(scripted)
    if not changed:
        yield
        changed = {name for name, version in _versions(scripted).items() if before.get(name) != version}
    if changed:
        raise ModelError(
            f"the model is TorchScript whose forward changes its own state ({', '.join(sorted(changed))}): its next "
            "answer may depend on earlier calls, and a saved graph would forget that; script it without the state"
        )


def trace_failure(module: nn.Module, error: Exception) -> str:
    """Return why torch.export could not trace a module that calls a model (FlatModel), in the user's terms."""
    parts = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if not parts:
        return reason(error)
    if parts[0] != "model":
        name = parts[0].removeprefix("model.")
        return f"its part {name} is TorchScript inside another module; script the whole model, or no part of it"
    if "aten.item" in str(error) or "data-dependent" in str(error):
        return "its TorchScript branches on the values of tensors, and a graph holds only one path"
    return reason(error)


def _assigned(module: torch.jit.ScriptModule) -> set[str]:
    """Return the attributes that forward assigns, or lists and dicts among them that it changes."""
    try:
        graph: Any = module.inlined_graph
    except RuntimeError:  # the part has no forward of its own, as a list of modules has none
        return set()
    names = {node.s("name") for node in graph.findAllNodes("prim::SetAttr", True)}
    aliases = graph.alias_db()
    for node in graph.findAllNodes("prim::GetAttr", True):
        if node.output().type().kind() in ("ListType", "DictType") and aliases.has_writers(node.output()):
            names.add(node.s("name"))
    return names


def _versions(scripted: list[torch.jit.ScriptModule]) -> dict[str, int]:
    """Return how often each parameter and buffer was written to, by name."""
    return {
        name: tensor._version
        for module in scripted
        for named in (module.named_parameters(), module.named_buffers())
        for name, tensor in named
    }
