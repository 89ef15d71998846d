"""Count what a model's modules do: operations, operators, and the bytes they read and write.

Operations are those of PyTorch's FlopCounterMode, so the totals are equal, except that fused attention on CPUs is
added. Bytes are counted at a module's border: tensors that it reads and did not make, and tensors that it makes and
others read. Tensors that are made and freed inside are left out, because a fused kernel would never write them.
"""

import contextlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

# Operators that read no more of their first input than they write.
_GATHERS = frozenset(
    {"embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "gather", "index", "index_select"}
)


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward_flops(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


# PyTorch 2.13 has a formula for every fused attention except the CPU's.
FORMULAS = {
    operator: formula
    for operator, formula in (
        (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, _attention_flops),
        (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward, _attention_backward_flops),
    )
    if operator not in flop_registry
}


@dataclass
class Work:
    """Hold the work of one module in one call of the model.

    Attributes:
        flops: Operations; a multiply-add counts as two.
        activation_bytes: Bytes read and written at the module's border, without weights.
        num_operators: Calls of operators that are no views.
        operators: The names of these operators as keys, in the order they first ran.
        weights: Bytes read of each weight, by its storage.
    """

    flops: int = 0
    activation_bytes: int = 0
    num_operators: int = 0
    operators: dict[str, None] = field(default_factory=dict)
    weights: dict[Any, int] = field(default_factory=dict)

    def add(self, other: "Work") -> None:
        self.flops += other.flops
        self.activation_bytes += other.activation_bytes
        self.num_operators += other.num_operators
        self.operators |= other.operators
        for key, num_bytes in other.weights.items():
            self.weights[key] = max(num_bytes, self.weights.get(key, 0))


@dataclass
class _Frame:
    """Hold one call of a module while it runs.

    Attributes:
        read: Bytes read of tensors made elsewhere, by storage.
        written: Bytes written in place to tensors made elsewhere, by storage.
        made: Bytes of the tensors made in this call, by storage.
        given: The storages made in this call and read elsewhere.
    """

    index: int
    read: dict[Any, int] = field(default_factory=dict)
    written: dict[Any, int] = field(default_factory=dict)
    made: dict[Any, int] = field(default_factory=dict)
    given: set[Any] = field(default_factory=set)


class WorkCounter(TorchDispatchMode):
    """Attribute every operator to the innermost running module.

    Enter it inside the `FlopCounterMode`, and pass it to `watched` together with the modules.

    Attributes:
        work: The work of each module, by its index.
        parents: The index of the module that first called a module, by index; -1 for none.
    """

    def __init__(self, model: nn.Module, flops: FlopCounterMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: dict[int, Work] = defaultdict(Work)
        self.parents: dict[int, int] = {}
        self._flops = flops
        self._weights = {_key(t) for t in (*model.parameters(), *model.buffers())}
        self._frames = [_Frame(-1)]

    def enter(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outer = self._frames[-1]
        outer.given |= {key for t in _tensors((args, kwargs)) if (key := _key(t)) in outer.made}
        self.parents.setdefault(index, outer.index)
        self._frames.append(_Frame(index))

    def leave(self, index: int, output: Any) -> None:
        frame = self._frames.pop()
        frame.given |= {key for t in _tensors(output) if (key := _key(t)) in frame.made}
        made = sum(frame.made[key] for key in frame.given)
        self.work[index].activation_bytes += sum(frame.read.values()) + sum(frame.written.values()) + made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._flops.get_total_flops()
        output = func(*args, **(kwargs or {}))
        frame = self._frames[-1]
        work = self.work[frame.index]
        work.flops += self._flops.get_total_flops() - before
        if not getattr(func, "is_view", False):  # a view touches no element and launches nothing
            name = func._schema.name.partition("::")[2] if hasattr(func, "_schema") else str(func)
            work.num_operators += 1
            work.operators[name] = None
            self._count_bytes(frame, work, name, list(_tensors((args, kwargs))), list(_tensors(output)))
        return output

    def _count_bytes(self, frame: _Frame, work: Work, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        output_bytes = sum(map(_num_bytes, outputs))
        known = set()
        for tensor in inputs:
            key = _key(tensor)
            known.add(key)
            num_bytes = min(_num_bytes(tensor), output_bytes) if name in _GATHERS else _num_bytes(tensor)
            if key in self._weights:
                work.weights[key] = max(num_bytes, work.weights.get(key, 0))
            elif key not in frame.made:
                frame.read[key] = max(num_bytes, frame.read.get(key, 0))
        for tensor in outputs:
            key = _key(tensor)
            if key not in known:
                frame.made[key] = _num_bytes(tensor)
            elif key not in frame.made and key not in self._weights:
                frame.written[key] = _num_bytes(tensor)


def _tensors(tree: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, dict):  # model outputs that nobody registered as a tree
            yield from _tensors(list(leaf.values()))


def _key(tensor: Tensor) -> Any:
    """Return a key that two tensors share exactly if they share memory.

    The key keeps no memory alive, but its address is not used again while the key exists.
    """
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
        return "no storage", id(tensor)


def _num_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes. An expanded tensor has more elements than memory: its memory counts."""
    try:
        return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return tensor.numel() * tensor.element_size()


def count_work(counter: WorkCounter, run: Callable[[], Any]) -> None:
    """Run the model once under the counter.

    PyTorch's compiled and fused paths are switched off meanwhile, because they hide operations.
    """
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    compiles = "torch._dynamo" in sys.modules  # otherwise nothing was compiled
    eager = torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext()
    try:
        with eager, counter, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*when there are global hooks", category=UserWarning)
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


def bytes_at(tree: Any) -> int:
    """Return the bytes of all tensors in an operator's arguments and output; those that share memory count once."""
    return sum({_key(tensor): _num_bytes(tensor) for tensor in _tensors(tree)}.values())
