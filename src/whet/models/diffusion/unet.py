"""Predict a frame's velocity with a small U-Net, from a noisy frame, a grey camera frame, the frame before and a digit.

The shape is that of Ho et al. (2020, arXiv:2006.11239) without attention: blocks of two convolutions, which halve the
image on the way down and see what was there on the way up. The time of the diffusion and the digit scale and shift the
normalised channels (Dhariwal and Nichol, 2021, arXiv:2105.05233). The output is the velocity v = a * noise - b * frame
of Salimans and Ho (2022, arXiv:2202.00512), for a noisy frame a * frame + b * noise.

Shape suffixes: B batch, C channels, H height, W width, E embedding.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.errors import OptionError
from whet.models.config_file import check_model_type, read_json, unusable
from whet.models.diffusion.names import FRAME_UNET
from whet.models.tensor_files import ModelFiles

MODEL_TYPE = FRAME_UNET

_LONGEST_PERIOD = 10_000.0  # of the sines of the time embedding, in timesteps


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """Describe a U-Net.

    Attributes:
        frame_size: Pixels of a frame, each way.
        grey_size: Pixels of the grey camera frame, each way.
        block: Pixels each way that become channels at the entry (space to depth), so that less is computed.
        widths: The channels of each level. Each level after the first has half the height and width.
        embedding: The size of the embedding of time and digit.
        num_digits: The number of prompts. One more row of the embedding stands for no prompt.

    Raises:
        OptionError: A value is out of its range, or two do not fit each other.
    """

    frame_size: int = 64
    grey_size: int = 16
    block: int = 2
    widths: tuple[int, ...] = (64, 96, 128)
    embedding: int = 320
    groups: int = 8
    num_digits: int = 10

    def __post_init__(self) -> None:
        for name in ("frame_size", "grey_size", "block", "embedding", "groups", "num_digits"):
            _check_count(name, getattr(self, name))
        if not isinstance(self.widths, tuple) or not self.widths:
            raise OptionError(f"widths must be a tuple of at least one number of channels; got {self.widths!r}")
        for width in self.widths:
            _check_count("each of widths", width)
            if width % self.groups:
                raise OptionError(f"each of widths must be a multiple of groups = {self.groups}; got {width}")
        smallest = self.block * 2 ** (len(self.widths) - 1)
        if self.frame_size % smallest:
            raise OptionError(
                f"frame_size must be a multiple of {smallest}, which is block times 2 for each level after the first; "
                f"got {self.frame_size}"
            )
        if self.grey_size > self.frame_size:
            raise OptionError(f"grey_size must be at most frame_size = {self.frame_size}; got {self.grey_size}")
        if self.embedding % 4:
            raise OptionError(f"embedding must be a multiple of 4; got {self.embedding}")

    @property
    def null_digit(self) -> int:
        return self.num_digits

    def as_json(self) -> dict[str, Any]:
        return {"model_type": MODEL_TYPE, **asdict(self), "widths": list(self.widths)}


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{name} must be a whole number from 1; got {value!r}")


class FrameUNet(nn.Module):
    """Predict the velocity of a noisy frame. All images are in [-1, 1].

    Nothing in `forward` depends on values, so that it can be traced and exported.
    """

    def __init__(self, config: UNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or UNetConfig()
        widths, embedding = config.widths, config.embedding
        self.time = nn.Sequential(nn.Linear(embedding // 2, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.digit = nn.Embedding(config.num_digits + 1, embedding)
        pixels = config.block**2
        self.stem = nn.Conv2d((3 + 3 + 1) * pixels, widths[0], 3, padding=1)

        self.down = nn.ModuleList()
        skips = [widths[0]]  # the channels of what the way up sees again
        for level, width in enumerate(widths):
            self.down.append(_Block(skips[-1], width, config))
            skips.append(width)
            if level < len(widths) - 1:
                self.down.append(_Halve(width))
                skips.append(width)

        self.middle = nn.ModuleList([_Block(widths[-1], widths[-1], config) for _ in range(2)])

        self.up = nn.ModuleList()
        channels = widths[-1]
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(2):
                self.up.append(_Block(channels + skips.pop(), width, config))
                channels = width
            if level:
                self.up.append(_Double(width))

        self.norm = nn.GroupNorm(config.groups, widths[0])
        self.head = _zeroed(nn.Conv2d(widths[0], 3 * pixels, 3, padding=1))

    def forward(
        self, noisy_BCHW: Tensor, timestep_B: Tensor, grey_BCHW: Tensor, previous_BCHW: Tensor, digit_B: Tensor
    ) -> Tensor:
        """Return the velocity, [B, 3, frame_size, frame_size].

        Args:
            noisy_BCHW: The noisy frames, [B, 3, frame_size, frame_size].
            timestep_B: The timesteps of the diffusion, floats from 0 to 999, [B].
            grey_BCHW: The camera's grey frames, [B, 1, grey_size, grey_size].
            previous_BCHW: The finished frames of before, [B, 3, frame_size, frame_size]; zeros where there is none.
            digit_B: The prompts, int64 from 0 to num_digits, [B]; num_digits stands for none.
        """
        block, size = self.config.block, self.config.frame_size
        enlarged_BCHW = F.interpolate(grey_BCHW, size=(size, size), mode="bilinear", align_corners=False)
        x_BCHW = F.pixel_unshuffle(torch.cat([noisy_BCHW, previous_BCHW, enlarged_BCHW], dim=1), block)
        embedded_BE = self.time(self._sines(timestep_B).to(x_BCHW.dtype)) + self.digit(digit_B)
        embedded_BE = F.silu(embedded_BE)

        x_BCHW = self.stem(x_BCHW)
        skips = [x_BCHW]
        for layer in self.down:
            x_BCHW = layer(x_BCHW, embedded_BE)
            skips.append(x_BCHW)
        for layer in self.middle:
            x_BCHW = layer(x_BCHW, embedded_BE)
        for layer in self.up:
            if isinstance(layer, _Block):
                x_BCHW = torch.cat([x_BCHW, skips.pop()], dim=1)
            x_BCHW = layer(x_BCHW, embedded_BE)
        return F.pixel_shuffle(self.head(F.silu(self.norm(x_BCHW))), block)

    def _sines(self, timestep_B: Tensor) -> Tensor:
        """Return the cosines and sines of the timesteps at geometric frequencies, [B, E / 2]."""
        half = self.config.embedding // 4
        exponents = torch.arange(half, dtype=torch.float32, device=timestep_B.device) / half
        angles = timestep_B.float()[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) * exponents)
        return torch.cat([angles.cos(), angles.sin()], dim=1)


class _Block(nn.Module):
    """Add two 3x3 convolutions to what comes in; time and digit scale and shift the channels between them."""

    def __init__(self, in_channels: int, out_channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(config.groups, in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.scale_shift = nn.Linear(config.embedding, 2 * out_channels)
        self.norm2 = nn.GroupNorm(config.groups, out_channels)
        self.conv2 = _zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x_BCHW: Tensor, embedded_BE: Tensor) -> Tensor:
        """Map [B, in_channels, H, W] to [B, out_channels, H, W]."""
        scale_BC, shift_BC = self.scale_shift(embedded_BE).chunk(2, dim=1)
        y_BCHW = self.conv1(F.silu(self.norm1(x_BCHW)))
        y_BCHW = self.norm2(y_BCHW) * (1 + scale_BC[:, :, None, None]) + shift_BC[:, :, None, None]
        y_BCHW = self.conv2(F.silu(y_BCHW))
        out_BCHW: Tensor = self.shortcut(x_BCHW) + y_BCHW
        return out_BCHW


class _Halve(nn.Module):
    """Apply a convolution of stride 2, which halves height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x_BCHW: Tensor, embedded_BE: Tensor) -> Tensor:
        y_BCHW: Tensor = self.conv(x_BCHW)
        return y_BCHW


class _Double(nn.Module):
    """Repeat each pixel 2 x 2 times, then smooth the image with a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x_BCHW: Tensor, embedded_BE: Tensor) -> Tensor:
        y_BCHW: Tensor = self.conv(F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest"))
        return y_BCHW


def _zeroed(layer: nn.Conv2d) -> nn.Conv2d:
    """Set a layer's weights to 0, so that a block changes nothing at first."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def config_from_json(directory: Path | str, raw: Mapping[str, Any]) -> UNetConfig:
    """Return the configuration that a config.json holds. The directory is for messages.

    Raises:
        TargetError: It is of another kind of model, or cannot be used.
    """
    check_model_type(directory, raw, [MODEL_TYPE], "the kinds of frame U-Nets are")
    known = {field.name for field in fields(UNetConfig)}
    given = {name: value for name, value in raw.items() if name != "model_type"}
    if unknown := sorted(given.keys() - known):
        raise unusable(directory, f"{unknown[0]} is unknown; remove it")
    if isinstance(given.get("widths"), list):
        given["widths"] = tuple(given["widths"])
    try:
        return UNetConfig(**given)
    except OptionError as error:
        raise unusable(directory, str(error)) from error


FILES = ModelFiles(
    read_config=lambda directory: config_from_json(directory, read_json(directory)),
    build=FrameUNet,
    name_of=str,
    pickles="save the weights as model.safetensors with safetensors.torch.save_file",
)
"""Read U-Nets of frames."""

load_unet = FILES.load
