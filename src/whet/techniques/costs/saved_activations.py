"""Measure what the repeated blocks of a model save in forward for backward."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whet.core.workload.blocks import repeated_blocks
from whet.techniques.costs.step_profile import kind_of


class SavedActivations(BaseModel, frozen=True):
    """Hold what one forward saves for backward, in bytes. Tensors that share their memory count once.

    Attributes:
        blocks: What each repeated block saves, in their order, without parameters and what blocks are given.
        products: The results of each block's products, convolutions and attention.
    """

    blocks: tuple[int, ...]
    products: tuple[int, ...]


def saved_activations(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batch: Any) -> SavedActivations:
    """Run forward once, with the model in the mode that it trains in, and count what it saves."""
    blocks = repeated_blocks(model)
    seen = _Seen(len(blocks), [*model.parameters(), *model.buffers(), *tree_leaves(batch)])
    handles = [
        handle
        for number, block in enumerate(blocks)
        for handle in (
            block.register_forward_pre_hook(partial(seen.enter, number), with_kwargs=True),
            block.register_forward_hook(seen.leave),
        )
    ]
    try:
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(seen.save, lambda tensor: tensor),
            _Products(seen),
        ):
            kept = loss(model, batch)  # while it lives, no two saved tensors have one address
        found = seen.counted()
        del kept
    finally:
        for handle in handles:
            handle.remove()
    return found


class _Seen:
    """Note which memory is saved while which block runs. `present` is in memory whether forward saves it or not."""

    def __init__(self, num_blocks: int, present: Iterable[Any]) -> None:
        self.products = [0] * num_blocks
        self._present = {address for address, _ in _storages(present)}
        self._given: list[Any] = []  # what blocks are given: it must live, since addresses are compared
        self._sizes: dict[int, int] = {}
        self._savers: dict[int, set[int | None]] = {}
        self.block: int | None = None

    def enter(self, number: int, block: nn.Module, args: Any, kwargs: Any) -> None:
        self.block = number
        self._given.append([x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)])

    def leave(self, block: nn.Module, args: Any, output: Any) -> None:
        self.block = None

    def save(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is saved, and save it as it is."""
        for address, size in _storages([tensor]):
            self._sizes[address] = size
            self._savers.setdefault(address, set()).add(self.block)
        return tensor

    def counted(self) -> SavedActivations:
        """Return what was saved. What a block is given, or something else saves too, is not the block's own."""
        blocks = [0] * len(self.products)
        others = self._present | {address for address, _ in _storages(tree_leaves(self._given))}
        for address, savers in self._savers.items():
            only = next(iter(savers)) if len(savers) == 1 else None
            if only is not None and address not in others:
                blocks[only] += self._sizes[address]
        return SavedActivations(blocks=tuple(blocks), products=tuple(self.products))


class _Products(TorchDispatchMode):
    """Add up the results of the products in each block."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        block = self._seen.block
        if block is not None and kind_of(func.name()) in ("products_s", "attention_s"):
            self._seen.products[block] += sum(size for _, size in _storages(tree_leaves(result)))
        return result


def _storages(tensors: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield the address and the bytes of the memory of each dense tensor that has any."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                yield storage.data_ptr(), storage.nbytes()
