"""Turn frames into frames with a model of diffusers: on pixels or latents, with or without a prompt."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import OptionError, TargetError
from whet.models.diffusion.directory import Parts
from whet.models.diffusion.frame_diffusion import Call, Entry
from whet.models.diffusion.prompts import Prompt

_SCALES = (1.0, 0.75, 0.5)


class DiffusersFrames:
    """Make a `FrameDiffusion` of a U-Net and maybe an autoencoder of diffusers.

    Samples are float32, whatever the models compute in, so that the sampler and the guidance round nothing more.

    Args:
        parts: The models, as `read_parts` returns them, on any device and in any floating-point format.
        prompt: The prompt's embeddings; None for a U-Net that takes none.
        size: Height and width of the frames.

    Attributes:
        prompt: The prompt's embeddings, where the U-Net is and in its format. They may be set between two calls.

    Raises:
        TargetError: The models don't fit together, or the U-Net needs a prompt and has none, or takes none.
        OptionError: The models cannot run at this size.
    """

    def __init__(self, parts: Parts, prompt: Prompt | None, size: tuple[int, int]) -> None:
        self.schedule, self.prediction = parts.scheduler.schedule(), parts.scheduler.prediction
        self._unet, self._autoencoder = parts.unet, parts.autoencoder
        self._takes_prompt = hasattr(parts.unet.config, "cross_attention_dim")
        self.channels = _channels(parts)
        self._check_prompt(parts, prompt)
        self.prompt = prompt
        self.scales = _scales(parts, size)
        self.embedded_weight = None if _width_of_weight(self._unet) is None else 1.0
        self._call_modules = _call_modules(parts.unet, parts.autoencoder)
        self._calls: dict[str, Call] = dict(self._call_modules)

    @property
    def prompt(self) -> Prompt | None:
        return self._prompt

    @prompt.setter
    def prompt(self, prompt: Prompt | None) -> None:
        self._prompt = None if prompt is None else prompt.to(self._unet.device, self._unet.dtype)

    @property
    def embedded_weight(self) -> float | None:
        return self._embedded_weight

    @embedded_weight.setter
    def embedded_weight(self, weight: float | None) -> None:
        self._embedded_weight = weight
        self._time_condition = None if weight is None else _time_condition(self._unet, weight)

    @property
    def has_null(self) -> bool:
        return self.prompt is not None and self.prompt.negative is not None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Return the models by name, the U-Net first."""
        return {"unet": self._unet} | ({} if self._autoencoder is None else {"autoencoder": self._autoencoder})

    @property
    def call_modules(self) -> Mapping[str, nn.Module]:
        return self._call_modules

    def wrap(self, wrapper: Callable[[str, Call], Call]) -> None:
        self._calls = {name: wrapper(name, call) for name, call in self._calls.items()}

    def enter(self, frame: Tensor, previous: Tensor | None) -> Entry:
        """Return a frame as pixels from -1 to 1, or as latents."""
        pixels = frame[None] * 2 - 1
        if self._autoencoder is None:
            return Entry(pixels)
        shift, scale = self._latent_scale
        return Entry((self._calls["encoder"](pixels).float() - shift) * scale)

    def predict(
        self, sample: Tensor, timesteps: Tensor, conditions: Mapping[str, Tensor], is_null: Tensor | None
    ) -> Tensor:
        extras: dict[str, Tensor] = {}
        if self.prompt is not None:
            extras["encoder_hidden_states"] = self.prompt.rows(len(sample), is_null)
        if self._time_condition is not None:
            extras["timestep_cond"] = self._time_condition.expand(len(sample), -1)
        return self._calls["U-Net"](sample=sample, timesteps=timesteps, **extras).to(sample.dtype)

    def leave(self, clean: Tensor) -> Tensor:
        if self._autoencoder is not None:
            shift, scale = self._latent_scale
            clean = self._calls["decoder"](clean / scale + shift)
        return (clean[0].float() / 2 + 0.5).clamp(0, 1)

    @property
    def _latent_scale(self) -> tuple[float, float]:
        config = self._autoencoder.config
        return float(getattr(config, "shift_factor", None) or 0.0), float(config.scaling_factor)

    def _check_prompt(self, parts: Parts, prompt: Prompt | None) -> None:
        if self._takes_prompt and prompt is None:
            raise TargetError(f"the U-Net of {parts.directory} takes a prompt: give --prompt or --prompt-embeds")
        if not self._takes_prompt and prompt is not None:
            raise TargetError(f"the U-Net of {parts.directory} takes no prompt; leave it out")
        if prompt is not None and prompt.width != (width := self._unet.config.cross_attention_dim):
            raise TargetError(f"the prompt's embeddings have {prompt.width} numbers a token; the U-Net takes {width}")


class _Denoiser(nn.Module):
    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Tensor, timesteps: Tensor, **extras: Tensor) -> Tensor:
        output: Tensor = self.unet(sample.to(self.unet.dtype), timesteps, return_dict=False, **extras)[0]
        return output


class _Encoder(nn.Module):
    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, pixels: Tensor) -> Tensor:
        encoded = self.autoencoder.encode(pixels.to(self.autoencoder.dtype))
        latents: Tensor = encoded.latents if hasattr(encoded, "latents") else encoded.latent_dist.mode()
        return latents


class _Decoder(nn.Module):
    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, latents: Tensor) -> Tensor:
        decoded: Tensor = self.autoencoder.decode(latents.to(self.autoencoder.dtype), return_dict=False)[0]
        return decoded


def _call_modules(unet: Any, autoencoder: Any) -> dict[str, nn.Module]:
    modules: dict[str, nn.Module] = {"U-Net": _Denoiser(unet)}
    if autoencoder is not None:
        modules |= {"encoder": _Encoder(autoencoder), "decoder": _Decoder(autoencoder)}
    return {name: module.eval() for name, module in modules.items()}


def _channels(parts: Parts) -> int:
    """Return the channels of the frames, after a check that the models fit together."""
    taken, made = parts.unet.config.in_channels, parts.unet.config.out_channels
    if parts.autoencoder is None:
        if taken != made or taken not in (1, 3):
            raise TargetError(
                f"the U-Net of {parts.directory} takes {taken} channels and returns {made}; without a folder vae it "
                "must take and return pixels of 1 or 3 channels"
            )
        return int(taken)
    autoencoder = parts.autoencoder.config
    if taken != made or taken != autoencoder.latent_channels:
        raise TargetError(
            f"the U-Net of {parts.directory} takes {taken} channels and returns {made}; its autoencoder has "
            f"{autoencoder.latent_channels}, so they don't fit together"
        )
    return int(autoencoder.in_channels)


def _scales(parts: Parts, size: tuple[int, int]) -> tuple[float, ...]:
    """Return the shares of a size that the models can run at.

    Raises:
        OptionError: They cannot run at the size itself.
    """
    factor = _multiple(parts)
    if any(side % factor or side < 1 for side in size):
        nearest = " x ".join(str(max(factor, round(side / factor) * factor)) for side in size)
        raise OptionError(
            f"{parts.directory} takes frames whose height and width are multiples of {factor}; "
            f"got {size[0]} x {size[1]}; the nearest is --size {nearest.replace(' ', '')}"
        )
    return tuple(s for s in _SCALES if all(round(side * s) % factor == 0 and side * s >= factor for side in size))


def _multiple(parts: Parts) -> int:
    """Return the number that divides height and width, as the U-Net and the autoencoder halve them."""
    halvings = len(parts.unet.config.block_out_channels) - 1 + parts.num_latent_halvings
    return int(2**halvings)


def _width_of_weight(unet: Any) -> int | None:
    """Return the width of the guidance weight's embedding, for a U-Net that was distilled with it; otherwise None."""
    width: int | None = getattr(unet.config, "time_cond_proj_dim", None)
    return width


def _time_condition(unet: Any, weight: float) -> Tensor:
    """Return the embedding of a guidance weight, [1, D], by sines and cosines (Luo et al., arXiv:2310.04378).

    The weight is that of classifier-free guidance, where 1 changes nothing; the U-Net is told w = weight - 1, as in
    diffusers' pipelines.
    """
    width = _width_of_weight(unet)
    assert width is not None
    half = width // 2
    # In the order of diffusers' operations: angles reach thousands, and rounding otherwise would show.
    rates = torch.exp(torch.arange(half, dtype=torch.float32) * -(torch.tensor(10000.0).log() / (half - 1)))
    angles = torch.tensor(weight - 1.0, dtype=torch.float32) * 1000.0 * rates
    embedded = torch.nn.functional.pad(torch.cat([angles.sin(), angles.cos()]), (0, width % 2))[None]
    return embedded.to(unet.device, unet.dtype)
