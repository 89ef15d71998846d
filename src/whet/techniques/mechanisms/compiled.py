"""Compile a model for training, piece by piece where a forward must stay as it is.

`nn.Module.compile` has two gaps. It compiles nothing of a module whose forward is PyTorch's own, such as a Sequential:
torch.compile skips frames of PyTorch. And a forward that it must leave alone breaks the graph of every module around
it, so that the code after the break is traced with values that were made for no tracing, such as deferred logits.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from whet.techniques.mechanisms.module_class import keep_eager, must_stay_eager

_UNCALLED = (nn.ModuleList, nn.ModuleDict)  # their forward is never called


def compile_in_place(model: nn.Module) -> None:
    """Compile the whole model, or its largest parts that have no forward which must stay as it is.

    Modules without submodules are not compiled by themselves: there is nothing to fuse.
    """
    for module in model.modules():
        keep_eager(module)
    parts = compiled_parts(model)
    for part in parts:
        # Parts of one class share their code. Where their shapes differ, each takes an entry of its own in the
        # compiler's cache, which would give up on that code after eight.
        _compile(part, recompile_limit=torch._dynamo.config.recompile_limit + len(parts))


def compiled_parts(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are compiled, each by itself. None lies in another one."""
    return list({id(part): part for part in _parts(model, is_root=True)}.values())


def _parts(module: nn.Module, *, is_root: bool) -> Iterator[nn.Module]:
    is_whole = not any(must_stay_eager(part) for part in module.modules())
    if is_whole and not isinstance(module, _UNCALLED):
        if is_root or next(module.children(), None) is not None:
            yield module
        return
    for child in module.children():
        yield from _parts(child, is_root=False)


def _compile(module: nn.Module, *, recompile_limit: int) -> None:
    if type(module).forward.__module__.startswith("torch."):
        traced = _traced(module._call_impl)
        module._compiled_call_impl = torch.compile(traced, recompile_limit=recompile_limit)  # type: ignore[call-overload]
    else:
        module.compile(recompile_limit=recompile_limit)


def _traced(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile does not skip, as it skips PyTorch's own."""

    def traced(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return traced
