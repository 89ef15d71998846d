"""Read diffusion models from directories in the layout of diffusers: a U-Net, an autoencoder, a scheduler's settings.

A directory is a pipeline, with folders `unet`, `scheduler`, and maybe `vae`, `text_encoder` and `tokenizer`; or it is
one U-Net. Models are built by diffusers. Only safetensors are read, nothing is downloaded, and no code of the directory
is run.
"""

import importlib
import inspect
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import nn

from whet.errors import MissingExtra, TargetError, foreign
from whet.models.config_file import FILE, read_json, validated
from whet.models.diffusion.names import UNETS, is_diffusers_directory
from whet.models.samplers import Schedule

AUTOENCODERS = ("AutoencoderTiny", "AutoencoderKL")
SCHEDULER_FILE = "scheduler_config.json"
_WEIGHTS = "diffusion_pytorch_model*.safetensors"


class SchedulerConfig(BaseModel):
    """Hold what a scheduler's settings say of the training: how much noise each timestep has, and what is predicted.

    The defaults are those of diffusers' DDPMScheduler.
    """

    class_name: Annotated[str | None, Field(alias="_class_name")] = None
    num_train_timesteps: Annotated[int, Field(ge=1, le=100_000)] = 1000
    beta_start: Annotated[float, Field(gt=0, lt=1)] = 0.0001
    beta_end: Annotated[float, Field(gt=0, lt=1)] = 0.02
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "linear"
    trained_betas: list[Annotated[float, Field(gt=0, lt=1)]] | None = None
    prediction_type: Literal["epsilon", "v_prediction", "sample"] = "epsilon"
    rescale_betas_zero_snr: bool = False
    clip_sample: bool | None = None
    clip_sample_range: Annotated[float, Field(gt=0)] = 1.0
    thresholding: Literal[False] = False

    def clip(self, sampler: str, *, is_latent: bool) -> float | None:
        """Return the limit of what a step estimates as the clean sample; None without one.

        diffusers' DDPM and DDIM clip unless their settings say otherwise, and LCM where its settings say so. Its other
        schedulers, and models of latents without settings, don't clip.
        """
        if sampler not in ("ddim", "lcm"):
            return None
        clips_by_itself = self.class_name in ("DDPMScheduler", "DDIMScheduler") or (
            self.class_name is None and not is_latent
        )
        clips = clips_by_itself if self.clip_sample is None else self.clip_sample
        return self.clip_sample_range if clips else None

    @property
    def prediction(self) -> str:
        """Return what the model predicts, as whet's samplers name it."""
        return "v" if self.prediction_type == "v_prediction" else self.prediction_type

    def schedule(self) -> Schedule:
        steps = self.num_train_timesteps
        if self.trained_betas is not None:
            schedule = Schedule.from_betas(self.trained_betas)
        elif self.beta_schedule == "squaredcos_cap_v2":
            schedule = Schedule.squaredcos_cap_v2(num_train_timesteps=steps)
        else:
            build = Schedule.linear if self.beta_schedule == "linear" else Schedule.scaled_linear
            schedule = build(self.beta_start, self.beta_end, num_train_timesteps=steps)
        return schedule.with_zero_terminal_snr() if self.rescale_betas_zero_snr else schedule


@dataclass(frozen=True)
class Parts:
    """Hold what a directory holds.

    Attributes:
        unet: The U-Net, in eval mode and float32.
        autoencoder: The autoencoder, in the same way; None for a U-Net on pixels.
        unread: The scheduler's settings that differ from the default of its class and change nothing here, by name.
        text_folders: The folders of the tokenizer and the text encoder; None where the directory lacks one of them.
    """

    directory: Path
    unet: Any
    autoencoder: Any
    scheduler: SchedulerConfig
    unread: Mapping[str, Any]
    text_folders: tuple[Path, Path] | None

    @property
    def num_latent_halvings(self) -> int:
        """Return how often the autoencoder halves a frame's height and width; 0 without an autoencoder.

        A tiny autoencoder halves in all blocks but one, as a KL autoencoder does.
        """
        if self.autoencoder is None:
            return 0
        config = self.autoencoder.config
        return len(getattr(config, "encoder_block_out_channels", None) or config.block_out_channels) - 1


def read_parts(directory: Path) -> Parts:
    """Return the models of a directory.

    Raises:
        TargetError: It is not there, is of another kind, is damaged, lacks weights, or needs what whet doesn't have.
        MissingExtra: diffusers is not installed.
    """
    if not directory.is_dir():
        raise TargetError(f"{directory} is not a directory; give one with a diffusion model in diffusers' layout")
    is_pipeline = (directory / "unet").is_dir()
    if not is_pipeline and not is_diffusers_directory(directory):
        raise TargetError(f"{directory} holds no diffusion model: neither a folder unet nor the config.json of a U-Net")
    unet_folder = directory / "unet" if is_pipeline else directory
    scheduler, unread = _scheduler(
        directory
    )  # the small files are read first, so that a mistake shows before the large ones
    _check_unet(unet_folder)
    vae_folder = directory / "vae"
    text_folders = (directory / "tokenizer", directory / "text_encoder")
    with quiet():
        unet = _model(unet_folder, UNETS)
        autoencoder = _model(vae_folder, AUTOENCODERS) if vae_folder.is_dir() else None
    has_text = all(folder.is_dir() for folder in text_folders)
    return Parts(directory, unet, autoencoder, scheduler, unread, text_folders if has_text else None)


def _scheduler(directory: Path) -> tuple[SchedulerConfig, dict[str, Any]]:
    """Return the settings of the directory's scheduler, or DDPM's where it has none, and those that are not read."""
    for path in (directory / "scheduler" / SCHEDULER_FILE, directory / SCHEDULER_FILE):
        if path.is_file():
            raw = read_json(path.parent, SCHEDULER_FILE)
            if raw.get("prediction_type") == "flow_prediction" or "FlowMatch" in str(raw.get("_class_name")):
                raise TargetError(f"{path}: a U-Net that predicts a flow is not supported; epsilon, v and sample are")
            defaults = _defaults(str(raw.get("_class_name")))
            known = {name: value for name, value in defaults.items() if name in SchedulerConfig.model_fields}
            found = validated(path.parent, SchedulerConfig, known | raw, SCHEDULER_FILE)
            return found, _unread(raw, defaults)
    return SchedulerConfig(), {}


def _defaults(class_name: str) -> dict[str, Any]:
    """Return the default settings of a scheduler of diffusers; none for a class that diffusers does not have."""
    kind = getattr(diffusers_package(), class_name, None) if class_name.endswith("Scheduler") else None
    if kind is None:
        return {}
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


def _unread(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults and that `SchedulerConfig` does not have.

    Where nobody knows the default, null and false count as unset.
    """
    own = {name: raw[name] for name in raw if not name.startswith("_") and name not in SchedulerConfig.model_fields}
    return {
        name: value
        for name, value in own.items()
        if (value != defaults[name] if name in defaults else value not in (None, False))
    }


def unread_settings(unread: Mapping[str, Any], sampler: str) -> str:
    told = ", ".join(f"{name} = {json.dumps(value)}" for name, value in unread.items())
    return f"settings of the scheduler that whet does not read: {told}; the steps are those of {sampler}"


def _check_unet(folder: Path) -> None:
    """Raise TargetError where a U-Net needs more than a prompt's embeddings."""
    raw = read_json(folder)
    needs = [
        name
        for name in ("addition_embed_type", "class_embed_type", "encoder_hid_dim_type", "num_class_embeds")
        if raw.get(name) is not None
    ]
    if needs:
        raise TargetError(f"{folder / FILE}: this U-Net needs {', '.join(needs)}, which whet stream doesn't give it")


def _model(folder: Path, known: tuple[str, ...]) -> nn.Module:
    """Return the model of a folder, in eval mode and float32, with all of its weights from the folder."""
    raw = read_json(folder)
    name = str(raw.get("_class_name"))
    if name not in known:
        raise TargetError(f"{folder / FILE}: _class_name is {name}; this can be {' or '.join(known)}")
    if not any(folder.glob(_WEIGHTS)):
        raise TargetError(f"{folder} has no weights as safetensors ({_WEIGHTS}); save them with save_pretrained(DIR)")
    model_class = getattr(diffusers_package(), name)
    with foreign(TargetError, f"diffusers cannot load {folder}"):
        model, info = model_class.from_pretrained(
            folder,
            torch_dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    absent = sorted(info["missing_keys"]) + sorted(map(str, info.get("mismatched_keys", ())))
    if absent:
        raise TargetError(
            f"{folder} lacks {len(absent)} of the model's weights, such as {absent[0]}; they would be random"
        )
    module: nn.Module = model.eval().requires_grad_(False)
    return module


def diffusers_package() -> Any:
    """Return the package diffusers.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        return importlib.import_module("diffusers")
    except ImportError as error:
        raise MissingExtra("diffusers", "stream", "a directory of diffusers") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off the log lines of diffusers and what it imports, and restore them afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
