"""What a model's modules do: operations, operators, and the bytes they read and write.

Operations are those of PyTorch's FlopCounterMode, so the totals are equal; fused attention on CPUs comes on top. Bytes
are counted at a module's border: what it reads that it did not make, and what it makes that others read. What lives and
dies inside is left out, for a fused kernel would never write it.
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
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_flop_count

# Operators that read no more of their first input than they write.
_GATHERS = frozenset(
    {"embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "gather", "index", "index_select"}
)


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


# PyTorch 2.13 has a formula for every fused attention but the CPU's.
FORMULAS = {
    operator: _attention_flops
    for operator in (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,)
    if operator not in flop_registry
}


@dataclass
class Work:
    """One module's share of one call of the model."""

    flops: int = 0
    activation_bytes: int = 0
    num_operators: int = 0
    operators: dict[str, None] = field(default_factory=dict)  # in the order they first ran
    weights: dict[Any, int] = field(default_factory=dict)  # storage -> bytes read, each once

    def add(self, other: "Work") -> None:
        self.flops += other.flops
        self.activation_bytes += other.activation_bytes
        self.num_operators += other.num_operators
        self.operators |= other.operators
        for key, num_bytes in other.weights.items():
            self.weights[key] = max(num_bytes, self.weights.get(key, 0))


@dataclass
class _Frame:
    """One call of a module while it runs. Keys are storages."""

    index: int
    read: dict[Any, int] = field(default_factory=dict)  # made elsewhere
    written: dict[Any, int] = field(default_factory=dict)  # made elsewhere, changed in place
    made: dict[Any, int] = field(default_factory=dict)
    given: set[Any] = field(default_factory=set)  # made here, read elsewhere


class WorkCounter(TorchDispatchMode):
    """Attributes every operator to the innermost module running. Enter it inside `flops`, and watch the modules."""

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
    """What two tensors share exactly when they share memory. Holds no memory, but keeps its address from reuse."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
        return "no storage", id(tensor)


def _num_bytes(tensor: Tensor) -> int:
    """An expanded tensor has more elements than memory."""
    try:
        return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return tensor.numel() * tensor.element_size()


def count_work(counter: WorkCounter, run: Callable[[], Any]) -> None:
    """Run the model once under the counter, with PyTorch's compiled and fused paths off: they hide their operations."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    compiles = "torch._dynamo" in sys.modules  # else nothing was compiled
    eager = torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext()
    try:
        with eager, counter, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*when there are global hooks", category=UserWarning)
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
