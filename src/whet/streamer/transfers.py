"""Move frames between the host and a GPU beside the model's work: pinned buffers, and a stream for each direction.

A frame crosses as uint8, a quarter of the bytes of float32, and becomes float32 on the device. The thread that reads
the source begins the upload as soon as a frame arrives, so that it runs while the model computes the frame before. An
answer is rounded to uint8 on the device and fetched on a stream of its own; whoever asks for it waits for that copy
alone.
"""

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.streamer.frames import Image

NUM_BUFFERS = 3  # one is written by the reader, one crosses, and one is waited for by the model


class CopyStreams:
    """Copy with PyTorch on one CUDA device. Tests of `Transfers` put a CPU in its place."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._up, self._down = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def buffer(self, shape: tuple[int, ...]) -> Tensor:
        """Return a pinned host buffer of bytes."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def uploading(self) -> AbstractContextManager[None]:
        """Run work on the stream of uploads."""
        context: AbstractContextManager[None] = torch.cuda.stream(self._up)
        return context

    def fetching(self) -> AbstractContextManager[None]:
        """Run work on the stream of downloads, after what the current stream has got to do so far."""
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        context: AbstractContextManager[None] = torch.cuda.stream(self._down)
        return context

    def mark(self) -> torch.cuda.Event:
        """Return an event behind the work that the current stream has got so far."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_for(self, event: Any, tensor: Tensor) -> None:
        """Let the current stream wait for an event before it uses a tensor that another stream has made."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        tensor.record_stream(current)  # its memory is not given away before the current stream has used it

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Return a device tensor of bytes, whose memory belongs to the current stream."""
        return torch.empty(shape, dtype=torch.uint8, device=self._device)


@dataclass(frozen=True)
class Staged:
    """Hold a frame on its way to the device, uint8 [H, W, 3], which is complete once the event has passed."""

    pixels: Tensor
    event: Any


class Transfers:
    """Move frames to a device and answers back. Uploads come from one thread, and all else from another."""

    def __init__(self, streams: CopyStreams) -> None:
        self._streams = streams
        self._uploads: deque[tuple[Tensor, Any]] = deque()  # pinned buffers, the oldest first, with their last copy
        self._answer: Tensor | None = None

    def upload(self, image: Image) -> Staged:
        """Begin to move a frame, uint8 [H, W, 3], to the device, and return it. The image may be changed afterwards."""
        buffer = self._free_buffer(image.shape)
        buffer.copy_(torch.from_numpy(image))
        with self._streams.uploading():
            pixels = self._streams.empty(image.shape)
            pixels.copy_(buffer, non_blocking=True)
            event = self._streams.mark()
        self._uploads.append((buffer, event))
        return Staged(pixels, event)

    def _free_buffer(self, shape: tuple[int, ...]) -> Tensor:
        """Return a pinned buffer that no copy reads any more."""
        if len(self._uploads) < NUM_BUFFERS:
            return self._streams.buffer(shape)
        buffer, event = self._uploads.popleft()
        event.synchronize()
        return buffer if buffer.shape == shape else self._streams.buffer(shape)

    def arrived(self, staged: Staged) -> Tensor:
        """Return a frame's pixels for the current stream, which waits for the copy; the host does not."""
        self._streams.wait_for(staged.event, staged.pixels)
        return staged.pixels

    def fetch(self, pixels: Tensor) -> Image:
        """Return an answer's pixels on the host once they are there, given contiguous uint8 [H, W, 3] on the device."""
        shape = tuple(pixels.shape)
        if self._answer is None or tuple(self._answer.shape) != shape:
            self._answer = self._streams.buffer(shape)
        with self._streams.fetching():
            self._answer.copy_(pixels, non_blocking=True)
            event = self._streams.mark()
        event.synchronize()
        image: Image = np.array(self._answer.numpy())  # the buffer is written again for the next answer
        return image
