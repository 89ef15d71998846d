"""Call any stream's model in one way, whichever of the optional parts of a step it has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.core.workload.stream import Step
from whet.errors import ModelError, type_name
from whet.models.diffusion.colour import luma
from whet.streamer.frames import Image, Size
from whet.streamer.transfers import CopyStreams, Staged, Transfers

_WARM_UP_CALLS = 3  # after a rolling batch is full


class FrameModel:
    """Turn images into images with a step, and tell which of the optional parts the step has.

    Args:
        step: The step. It may have `in_flight` and `advance()` (see `whet.core.workload.stream.Step`); `reset()`, which
            forgets all frames; `steps` with `change(steps)`, which discards what is in flight and goes on with so many
            steps of the sampler; and `scales`, the sizes that it can run at as shares of the full one, from 1 down.
        channels: The channels of the frames that the step takes, 1 or 3.
        device: Where the step takes its frames.
        reopen: Opens the step anew, for one that has no `reset`.

    Raises:
        ModelError: The step has `steps` that are no whole number above 0.
    """

    def __init__(
        self, step: Step, *, channels: int = 3, device: str = "cpu", reopen: Callable[[], Step] | None = None
    ) -> None:
        self.step: Any = step
        self._reopen, self._is_fresh = reopen, True
        steps = self.steps
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ModelError(f"a stream's model has `steps`, a whole number above 0; got {steps!r}")
        self._first_steps = steps
        self._channels, self._device = channels, torch.device(device)
        self._transfers: Transfers | None = None
        if self._device.type == "cuda":
            self._transfers = Transfers(CopyStreams(self._device))

    @property
    def in_flight(self) -> int:
        """Return the number of frames that have no answer yet."""
        return int(getattr(self.step, "in_flight", 0))

    @property
    def steps(self) -> int | None:
        """Return the steps of the sampler; None where the model has no such choice."""
        return getattr(self.step, "steps", None) if hasattr(self.step, "change") else None

    @property
    def scales(self) -> tuple[float, ...]:
        """Return the sizes that the model can run at, as shares of the full one, from 1 down."""
        return tuple(getattr(self.step, "scales", (1.0,))) if hasattr(self.step, "change") else (1.0,)

    def change(self, steps: int | None) -> None:
        """Discard what is in flight, and go on with so many steps of the sampler."""
        if hasattr(self.step, "change"):
            self.step.change(steps)

    def restart(self) -> None:
        """Forget all frames and go back to the first number of steps: by `reset`, or else by opening the step anew."""
        if hasattr(self.step, "reset"):
            self.step.reset()
        elif not self._is_fresh and self._reopen is not None:
            self.step = self._reopen()
        if self._first_steps is not None:
            self.step.change(self._first_steps)
        self._is_fresh = True

    def warm_up(self, size: Size) -> None:
        """Call the model until it has filled its batch, allocated memory and started threads; then forget the frames.

        A step that cannot forget them is not called.
        """
        if not hasattr(self.step, "reset"):
            return
        frame = self.as_input(np.zeros((*size, 3), np.uint8))
        for _ in range((self.steps or 1) + _WARM_UP_CALLS):
            self(frame)
        self.restart()

    def stage(self, image: Image) -> Image | Staged:
        """Begin to move an image to where the step takes its frames. Another thread than the step's may call this."""
        return image if self._transfers is None else self._transfers.upload(image)

    def as_input(self, image: Image | Staged, scale: float = 1.0) -> Tensor:
        """Return an image as the step takes it: [C, H, W], float32, from 0 to 1, on the step's device.

        Args:
            image: An image, uint8 [H, W, 3], or what `stage` returned for it.
            scale: The share of its height and width.
        """
        if self._transfers is None:
            assert not isinstance(image, Staged)
            pixels = torch.from_numpy(image)
        else:
            pixels = self._transfers.arrived(image if isinstance(image, Staged) else self._transfers.upload(image))
        tensor = pixels.permute(2, 0, 1).float().div_(255)
        if self._channels == 1:
            tensor = luma(tensor)
        if scale != 1:
            tensor = _resized(tensor, round(tensor.shape[1] * scale), round(tensor.shape[2] * scale))
        return tensor

    def as_image(self, frame: Tensor, size: Size | None = None) -> Image | None:
        """Return what the step made as an image on the host; see the function `as_image`."""
        return as_image(frame, size, fetch=None if self._transfers is None else self._transfers.fetch)

    def __call__(self, frame: Tensor) -> Tensor | None:
        """Return what the step makes of a frame.

        Raises:
            ModelError: The step raised an error, or returned something else than a frame or None.
        """
        self._is_fresh = False
        return self._checked(self.step, frame)

    def advance(self) -> Tensor | None:
        """Go on with the frames in flight, without a new one."""
        return self._checked(self.step.advance)

    def _checked(self, function: Any, *args: Tensor) -> Tensor | None:
        try:
            with torch.inference_mode():
                answer = function(*args)
                if self._device.type == "cuda":  # so that the model's time is that of its kernels
                    torch.cuda.current_stream(self._device).synchronize()
        except Exception as error:
            raise ModelError(f"the stream's model failed: {type_name(error)}: {error}") from error
        if answer is None:
            return None
        if not isinstance(answer, Tensor):
            raise ModelError(f"a stream's model returns a tensor or None; got {type(answer).__name__}")
        if answer.ndim != 3 or answer.shape[0] not in (1, 3) or not answer.numel() or not answer.is_floating_point():
            raise ModelError(
                "a stream's model returns frames [C, H, W] with 1 or 3 channels, floating-point from 0 to 1; "
                f"got {str(answer.dtype).removeprefix('torch.')} {tuple(answer.shape)}"
            )
        return answer


def as_image(
    frame: Tensor, size: Size | None = None, *, fetch: Callable[[Tensor], Image] | None = None
) -> Image | None:
    """Return a model's frame as an image, uint8 [H, W, 3]; None where it holds a value that is not finite.

    Args:
        frame: [C, H, W] from 0 to 1, of 1 or 3 channels. Values beyond are clamped.
        size: Height and width of the image; None keeps the frame's own.
        fetch: Returns pixels of the frame's device on the host; None for a frame that may be moved as it is.
    """
    frame = frame.detach().float()
    if size is not None and tuple(frame.shape[1:]) != size:
        frame = _resized(frame, *size)
    if fetch is None:
        frame = frame.cpu()
    # A sum is finite only if all of its terms are, and is far cheaper than a mask. Frames near 1 cannot overflow it.
    total = frame.sum()
    quantised = frame.mul(255).round_().clamp_(0, 255).to(torch.uint8).expand(3, -1, -1)
    pixels = quantised.permute(1, 2, 0).contiguous()
    image: Image = np.ascontiguousarray(pixels.numpy()) if fetch is None else fetch(pixels)
    return image if bool(torch.isfinite(total)) else None


def _resized(frame: Tensor, height: int, width: int) -> Tensor:
    size = (max(1, height), max(1, width))
    return torch.nn.functional.interpolate(frame[None], size=size, mode="bilinear", antialias=True)[0]
