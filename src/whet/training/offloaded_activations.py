"""Move what forward keeps for backward to the host's memory, and back when backward needs it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whet.training.module_class import AddedForward

LEAST_BYTES = 2**20  # smaller tensors stay: moving them costs more than it saves


class Offloaded(AddedForward):
    """Keep large tensors that forward saves for backward in the host's memory."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what forward returns."""
        if not (self.training and torch.is_grad_enabled()):  # type: ignore[attr-defined]
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        with offloading(self):  # type: ignore[arg-type]
            return super().forward(*args, **kwargs)  # type: ignore[misc]


@contextlib.contextmanager
def offloading(module: nn.Module, *, device_type: str = "cuda") -> Iterator[None]:
    """Move what is saved in the block and lies on a device of this type to the host. Parameters and buffers stay."""
    kept = {x.untyped_storage().data_ptr() for x in (*module.parameters(), *module.buffers())}

    def pack(x: Tensor) -> Tensor | tuple[torch.device, Tensor, Any]:
        is_kept = x.device.type != device_type or x.nbytes < LEAST_BYTES
        if is_kept or type(x) is not Tensor or x.untyped_storage().data_ptr() in kept:
            return x
        return (x.device, *_to_host(x))

    def unpack(packed: Tensor | tuple[torch.device, Tensor, Any]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, host, is_there = packed
        if is_there is not None:
            torch.cuda.current_stream(device).wait_event(is_there)
        return host.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


_STREAMS: dict[torch.device, Any] = {}


def _to_host(x: Tensor) -> tuple[Tensor, Any]:
    """Copy a tensor to the host, on a GPU beside what it computes; and return the event that marks the end."""
    if not x.is_cuda:
        return x.clone(), None
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    stream = _STREAMS.setdefault(x.device, torch.cuda.Stream(x.device))
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(stream):
        host.copy_(x, non_blocking=True)
        event = stream.record_event()
    x.record_stream(stream)  # its memory is not given to others before the copy has ended
    return host, event
