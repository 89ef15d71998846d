"""Move what forward keeps for backward to the host's memory, and back when backward needs it.

The buffers there are used again in the next step; see whet.techniques.mechanisms.buffer_pool.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whet.techniques.mechanisms.host_copies import HostCopy
from whet.techniques.mechanisms.module_class import AddedForward

LEAST_BYTES = 2**20  # smaller tensors stay: moving them costs more than it saves


class Offloaded(AddedForward):
    """Keep large tensors that forward saves for backward in the host's memory."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):  # type: ignore[attr-defined]
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        with offloading(self):  # type: ignore[arg-type]
            return super().forward(*args, **kwargs)  # type: ignore[misc]


@contextlib.contextmanager
def offloading(module: nn.Module, *, device_type: str = "cuda") -> Iterator[None]:
    """Move what is saved in the block and lies on a device of this type to the host. Parameters and buffers stay."""
    kept = {x.untyped_storage().data_ptr() for x in (*module.parameters(), *module.buffers())}

    def pack(x: Tensor) -> Tensor | HostCopy:
        is_kept = x.device.type != device_type or x.nbytes < LEAST_BYTES
        if is_kept or type(x) is not Tensor or x.untyped_storage().data_ptr() in kept:
            return x
        return HostCopy(x)

    def unpack(packed: Tensor | HostCopy) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed.on_device()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
