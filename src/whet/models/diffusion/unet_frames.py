"""Turn frames into frames with whet's own U-Net: from a grey, small view of a frame to a frame of a digit's sign."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from whet.errors import OptionError
from whet.models.diffusion.colour import seen_in_grey
from whet.models.diffusion.frame_diffusion import Call, Entry
from whet.models.diffusion.unet import FrameUNet
from whet.models.samplers import Schedule


class UNetFrames:
    """Make a `FrameDiffusion` of a `FrameUNet`, which draws each frame from noise.

    It sees the camera's frame in grey with few pixels, the last frame that came out, and a digit.

    Args:
        unet: The U-Net, on any device and in any floating-point format. Samples are float32 all the same.
        digit: The prompt, from 0; None for no prompt.

    Attributes:
        scales: 1 alone: the U-Net has one size of frames.
        has_null: True, since the U-Net was also trained without a prompt.
    """

    schedule = Schedule.scaled_linear()
    prediction = "v"
    channels = 3
    scales: tuple[float, ...] = (1.0,)
    has_null = True
    embedded_weight: float | None = None

    def __init__(self, unet: FrameUNet, digit: int | None = None) -> None:
        self.unet = unet
        self._call_module = _Denoiser(unet).eval()
        self._call: Call = self._call_module
        self._config = unet.config
        self._null = unet.config.num_digits
        self.digit = digit

    @property
    def digit(self) -> int | None:
        """Return the prompt; None for no prompt. It may be set between two calls."""
        return None if self._digit == self._null else self._digit

    @digit.setter
    def digit(self, digit: int | None) -> None:
        self._digit = self._null if self.checked(digit) is None else int(digit or 0)

    def checked(self, digit: int | None) -> int | None:
        """Return a digit that can be the prompt, or None for no prompt.

        Raises:
            OptionError: There is no such prompt.
        """
        if digit is not None and not 0 <= digit < self._null:
            raise OptionError(f"the prompt is a digit from 0 to {self._null - 1}; got {digit}")
        return digit

    @property
    def call_modules(self) -> Mapping[str, nn.Module]:
        return {"U-Net": self._call_module}

    def wrap(self, wrapper: Callable[[str, Call], Call]) -> None:
        self._call = wrapper("U-Net", self._call)

    def enter(self, frame: Tensor, previous: Tensor | None) -> Entry:
        """Return noise alone as the sample, with the grey view and the last frame as conditions, all in [-1, 1]."""
        pixels = frame[None] * 2 - 1
        last = torch.zeros_like(pixels) if previous is None else previous[None] * 2 - 1
        grey = seen_in_grey(pixels, self._config.frame_size // self._config.grey_size)
        return Entry(torch.zeros_like(pixels), {"grey": grey, "previous": last})

    def predict(
        self, sample: Tensor, timesteps: Tensor, conditions: Mapping[str, Tensor], is_null: Tensor | None
    ) -> Tensor:
        digits = torch.full((len(sample),), self._digit, device=sample.device)
        if is_null is not None:
            digits = torch.where(is_null, self._null, digits)
        return self._call(sample, timesteps, conditions["grey"], conditions["previous"], digits).to(sample.dtype)

    def leave(self, clean: Tensor) -> Tensor:
        return (clean[0].float() / 2 + 0.5).clamp(0, 1)


class _Denoiser(nn.Module):
    """Call a U-Net with float32 images and any timesteps, whatever it computes in."""

    def __init__(self, unet: FrameUNet) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Tensor, timesteps: Tensor, grey: Tensor, previous: Tensor, digits: Tensor) -> Tensor:
        dtype = next(self.unet.parameters()).dtype
        images = (image.to(dtype) for image in (grey, previous))
        output: Tensor = self.unet(sample.to(dtype), timesteps.float(), *images, digits)
        return output
