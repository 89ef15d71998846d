"""Small diffusers directories with random weights, built once a session."""

import json
import warnings
from pathlib import Path

import torch


def diffusers():
    """Import diffusers, which warns about packages that it finds beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers

        # Classes are loaded when they are first used, and warn then.
        for name in ("UNet2DModel", "UNet2DConditionModel", "AutoencoderTiny", "AutoencoderKL", "LCMScheduler"):
            getattr(diffusers, name)
    return diffusers


def pixel_unet(directory: Path, side: int = 16) -> Path:
    """Write a U-Net on pixels, as one model's directory."""
    torch.manual_seed(0)
    unet = diffusers().UNet2DModel(
        sample_size=side,
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        add_attention=False,
        norm_num_groups=8,
    )
    unet.save_pretrained(directory)
    return directory


def latent_pipeline(
    directory: Path, autoencoder: str = "AutoencoderTiny", scheduler: dict | None = None, **unet_options: object
) -> Path:
    """Write a pipeline of a U-Net with a prompt, an autoencoder and a scheduler."""
    torch.manual_seed(0)
    package = diffusers()
    unet = package.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        **unet_options,
    )
    unet.save_pretrained(directory / "unet")
    if autoencoder == "AutoencoderTiny":
        vae = package.AutoencoderTiny(
            encoder_block_out_channels=(16, 16, 16),
            decoder_block_out_channels=(16, 16, 16),
            num_encoder_blocks=(1, 1, 1),
            num_decoder_blocks=(1, 1, 1),
        )
    else:
        vae = package.AutoencoderKL(
            block_out_channels=(16, 16, 16),
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            latent_channels=4,
            norm_num_groups=8,
            scaling_factor=0.18215,
        )
    vae.save_pretrained(directory / "vae")
    settings = {
        "_class_name": "LCMScheduler",
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "prediction_type": "epsilon",
        **(scheduler or {}),
    }
    (directory / "scheduler").mkdir()
    (directory / "scheduler" / "scheduler_config.json").write_text(json.dumps(settings))
    (directory / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionImg2ImgPipeline"}))
    return directory


def embeddings_file(path: Path, *, negative: bool = True, width: int = 16) -> Path:
    """Write a prompt's embeddings, and maybe those of a negative prompt."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    names = ("prompt_embeds", "negative_prompt_embeds") if negative else ("prompt_embeds",)
    save_file({name: torch.randn(1, 5, width, generator=generator) for name in names}, path)
    return path
