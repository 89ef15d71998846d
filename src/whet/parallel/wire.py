"""Count the bytes that a process sends to others, in whatever calls collectives: DDP, FSDP2, DTensor, pipelines."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_GROUP = ("process_group", "group_name")  # the arguments of operators that name it
# How often the whole tensor is sent, less the n-th part that stays: the first name that an operator's begins with.
_PASSES = {
    "allreduce": ("all_reduce", 2),
    "allgather": ("all_gather", 1),
    "reducescatter": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "sharddimalltoall": ("all_to_all", 1),
    "broadcast": ("broadcast", 1),
    "reduce": ("reduce", 1),
}
_SENT_WHOLE = ("send", "isend")
_SEND_NOTHING = ("recv", "irecv", "barrier", "monitoredbarrier", "waittensor", "wraptensor")


class WireCount(TorchDispatchMode):
    """Count the bytes that this process sends in the collectives of the block.

    The bytes are those that rings send, on average over the n processes of a group, of a whole tensor of B bytes:
    2 (n - 1) / n B in an all-reduce; (n - 1) / n B in an all-gather, reduce-scatter, broadcast, reduce or all-to-all;
    B in a send. A backend may send more: gloo, as of PyTorch 2.13, makes each reduce-scatter an all-reduce. What other
    threads call is not seen.

    Attributes:
        num_bytes: The bytes by kind of collective.
        calls: The calls by kind.
        uncounted: The operators that this does not know.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.uncounted: set[str] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: what is compiled stays compiled, and its collectives are seen as it runs."""
        return True

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if getattr(func, "namespace", None) in _NAMESPACES:
            self._count(func, args, kwargs or {}, found)
        return found

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        name = func._schema.name.partition("::")[2].replace("_", "")
        if name.startswith(_SEND_NOTHING):
            return
        named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
        whole = max(_bytes_of(one) for one in (*named.values(), found))
        if name.startswith(_SENT_WHOLE):
            kind, sent = "send", whole
        elif (prefix := next((one for one in _PASSES if name.startswith(one)), None)) is not None:
            kind, passes = _PASSES[prefix]
            size = _size_of(next(named[one] for one in _GROUP if one in named))
            sent = passes * (size - 1) * whole // size
        else:
            self.uncounted.add(func._schema.name)
            return
        self.num_bytes[kind] += sent
        self.calls[kind] += 1


def _bytes_of(argument: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(argument) if isinstance(x, Tensor))


def _size_of(group: Any) -> int:
    """Return the number of processes of a group, given as operators take it: by its name, or as a script object."""
    if isinstance(group, str):
        return int(_resolve_process_group(group).size())  # type: ignore[arg-type]
    if isinstance(group, torch.ScriptObject):
        group = distributed.ProcessGroup.unbox(group)
    return int(group.size())
