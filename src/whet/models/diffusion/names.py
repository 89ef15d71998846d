"""Name what users can choose for a diffusion model, and check it. Nothing heavy is imported, so that help is quick."""

import json
from pathlib import Path
from typing import Any

from whet.errors import OptionError

SAMPLER_NAMES = ("lcm", "tcd", "ddim", "dpm++2m", "euler", "euler-ancestral")
"""The samplers for models of a variance-preserving process; few_steps.py says what each does."""

DTYPE_NAMES = ("float32", "bf16", "fp16", "fp8")
"""The number formats that models compute in; placement.py says what each does."""

BACKENDS = ("inductor", "tensorrt")
"""What the calls of a model can be compiled with."""

UNETS = ("UNet2DModel", "UNet2DConditionModel")
"""The classes of diffusers whose directories are run."""

_CONFIG = "config.json"

FRAME_UNET = "whet_frame_unet"
"""The model_type of whet's own U-Net."""


def check_sampler(name: str) -> None:
    """Raise OptionError where there is no such sampler."""
    if name not in SAMPLER_NAMES:
        raise OptionError(f"--sampler is one of {', '.join(SAMPLER_NAMES)}; got {name!r}")


def check_strength(strength: float) -> None:
    """Raise OptionError where no frame can go back by such a share of the timesteps."""
    if not 0 < strength <= 1:
        raise OptionError(f"--strength is above 0 and at most 1; got {strength:g}")


def check_dtype(name: str) -> None:
    """Raise OptionError where there is no such number format."""
    if name not in DTYPE_NAMES:
        raise OptionError(f"--dtype is one of {', '.join(DTYPE_NAMES)}; got {name!r}")


def check_backend_name(name: str) -> None:
    """Raise OptionError where there is no such compiler."""
    if name not in BACKENDS:
        raise OptionError(f"--backend is one of {', '.join(BACKENDS)}; got {name!r}")


def is_diffusers_directory(directory: Path) -> bool:
    """Return whether a directory is laid out as a diffusion pipeline, or as one U-Net of diffusers."""
    if (directory / "model_index.json").is_file() or (directory / "unet" / _CONFIG).is_file():
        return True
    return _config(directory).get("_class_name") in UNETS


def is_frame_unet(directory: Path) -> bool:
    return _config(directory).get("model_type") == FRAME_UNET


def _config(directory: Path) -> dict[str, Any]:
    """Return the content of a directory's config.json; nothing where it cannot be read, which opening it says."""
    try:
        found = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
