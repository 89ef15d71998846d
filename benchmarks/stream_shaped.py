"""A pipeline of Stable Diffusion's shape with random weights: whet stream beside diffusers' img2img pipeline.

The U-Net has the layers of Stable Diffusion 1.5 (Rombach et al., 2022, arXiv:2112.10752) and the autoencoder is
diffusers' tiny one. Both sides get the same embeddings of a prompt, without guidance, and half of the noise, so that a
frame takes as many calls of the U-Net on either side.
"""

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from stream_variants import BETAS, Side, StreamSide, Turn

from whet.streamer.sources.synthetic import SyntheticClip

WIDTHS = (320, 640, 1280, 1280)
PIXELS = 256
_STRENGTH = 0.5
_EMBEDDINGS = "prompt.safetensors"
_TOKENS, _TOKEN_WIDTH = 77, 768
IMG2IMG, SHAPED_STREAM = "diffusers, img2img pipeline", "whet stream"


def write_pipeline(directory: Path, widths: tuple[int, ...] = WIDTHS, pixels: int = PIXELS) -> Path:
    """Write a pipeline's directory of diffusers, with random weights and the embeddings of a prompt.

    Args:
        directory: Where to write; made if needed.
        widths: The channels of the U-Net's levels, multiples of 32.
        pixels: Height and width of the frames.
    """
    package = _diffusers()
    unet = shaped_unet(widths, pixels // 8)
    unet.save_pretrained(directory / "unet")
    package.AutoencoderTiny().save_pretrained(directory / "vae")
    package.LCMScheduler(**BETAS, steps_offset=1).save_pretrained(directory / "scheduler")
    (directory / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionImg2ImgPipeline"}))
    save_file({"prompt_embeds": torch.randn(1, _TOKENS, _TOKEN_WIDTH)}, directory / _EMBEDDINGS)
    return directory


def shaped_unet(widths: tuple[int, ...], latents: int) -> Any:
    """Return a U-Net of Stable Diffusion's layers with random weights, for so many latents each way."""
    torch.manual_seed(0)
    inner = len(widths) - 1  # levels with attention; the last has none
    return _diffusers().UNet2DConditionModel(
        sample_size=latents,
        in_channels=4,
        out_channels=4,
        block_out_channels=widths,
        layers_per_block=2,
        cross_attention_dim=_TOKEN_WIDTH,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D",) * inner + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * inner,
    )


class Img2Img:
    """diffusers' own pipeline, called once a frame, with images in and out."""

    def __init__(self, directory: Path) -> None:
        from PIL import Image

        package = _diffusers()
        self._image_of = Image.fromarray
        unet = package.UNet2DConditionModel.from_pretrained(directory / "unet", low_cpu_mem_usage=False)
        self._pixels = unet.config.sample_size * 8
        self._pipeline = package.StableDiffusionImg2ImgPipeline(
            vae=package.AutoencoderTiny.from_pretrained(directory / "vae", low_cpu_mem_usage=False),
            unet=unet,
            scheduler=package.LCMScheduler.from_pretrained(directory / "scheduler"),
            text_encoder=None,
            tokenizer=None,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        self._pipeline.set_progress_bar_config(disable=True)
        self._prompt = load_file(directory / _EMBEDDINGS)["prompt_embeds"]
        self.num_calls = 0
        unet.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.num_calls += 1

    def turn(self, steps: int, num_frames: int) -> Turn:
        began = 0.0
        for frame in SyntheticClip(1 + num_frames, size=(self._pixels, self._pixels)):
            self.num_calls = 0
            made = self._pipeline(
                image=self._image_of(frame.image),
                prompt_embeds=self._prompt,
                strength=_STRENGTH,
                num_inference_steps=round(steps / _STRENGTH),  # of which it makes the share of the strength
                guidance_scale=1.0,
            ).images[0]
            if np.asarray(made).shape != frame.image.shape or self.num_calls != steps:
                raise RuntimeError(f"the pipeline called its U-Net {self.num_calls} times for {steps} steps")
            if frame.index == 0:
                began = time.perf_counter()
        return {"s_per_frame": (time.perf_counter() - began) / num_frames}


def _stream(directory: Path) -> Side:
    sample = json.loads((directory / "unet" / "config.json").read_text(encoding="utf-8"))["sample_size"]
    return StreamSide(
        directory,
        prompt_embeds=directory / _EMBEDDINGS,
        sampler="lcm",
        strength=_STRENGTH,
        size=(8 * sample, 8 * sample),
    )


def _diffusers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that diffusers finds beside it
        import diffusers

        for name in ("UNet2DConditionModel", "AutoencoderTiny", "LCMScheduler", "StableDiffusionImg2ImgPipeline"):
            getattr(diffusers, name)  # classes are loaded when they are first used, and warn then
    diffusers.utils.logging.set_verbosity_error()
    return diffusers


SHAPED_SIDES: dict[str, Callable[[Path], Side]] = {IMG2IMG: Img2Img, SHAPED_STREAM: _stream}
