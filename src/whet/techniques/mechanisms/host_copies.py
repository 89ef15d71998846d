"""Copy tensors to buffers in the host's memory and back, on a GPU beside what it computes."""

from typing import Any

import torch
from torch import Tensor

from whet.techniques.mechanisms.buffer_pool import HOST_BUFFERS

_STREAMS: dict[torch.device, Any] = {}


class HostCopy:
    """Hold a copy of a tensor in the host's memory: `buffer`, which may not be complete yet."""

    def __init__(self, x: Tensor) -> None:
        """Begin the copy. On a GPU it goes on beside what the present stream computes."""
        self.device = x.device
        self.buffer = HOST_BUFFERS.like(x)
        self._is_there: Any = None
        with torch.no_grad():
            if not x.is_cuda:
                self.buffer.copy_(x)
                return
            stream = _side_stream(x.device)
            stream.wait_stream(torch.cuda.current_stream(x.device))
            with torch.cuda.stream(stream):
                self.buffer.copy_(x, non_blocking=True)
                self._is_there = stream.record_event()
        x.record_stream(stream)  # its memory is not given to others before the copy has ended
        HOST_BUFFERS.guard(self.buffer, self._is_there)

    def on_host(self) -> Tensor:
        """Return the copy, once it is complete. Who writes to it changes it."""
        if self._is_there is not None:
            self._is_there.synchronize()
            self._is_there = None
        return self.buffer

    def on_device(self) -> Tensor:
        """Return a tensor with these numbers on the first device; for a tensor on the CPU, the copy itself."""
        if self.device.type != "cuda":
            return self.buffer
        present = torch.cuda.current_stream(self.device)
        if self._is_there is not None:
            present.wait_event(self._is_there)
        moved = self.buffer.to(self.device, non_blocking=True)
        HOST_BUFFERS.guard(self.buffer, present.record_event())
        return moved


def _side_stream(device: torch.device) -> Any:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
