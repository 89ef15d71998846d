"""Open what a stream runs: a directory of diffusers, or a function of the user's own that returns a StreamWorkload."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.core.workload import StreamWorkload
from whet.errors import OptionError, TargetError, foreign
from whet.models.diffusion.diffusers_frames import DiffusersFrames
from whet.models.diffusion.directory import Parts, read_parts, unread_settings
from whet.models.diffusion.few_steps import few_steps, is_known, sampler_of
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.names import is_diffusers_directory, is_frame_unet
from whet.models.diffusion.pipeline import DiffusionStep
from whet.models.diffusion.placement import Placement
from whet.models.diffusion.prompts import Prompt, prompt_encoder, read_prompt
from whet.models.diffusion.unet import load_unet
from whet.models.diffusion.unet_frames import UNetFrames
from whet.streamer.frames import Size
from whet.streamer.model import FrameModel
from whet.streamer.module_swaps import Replacements
from whet.streamer.target_name import is_tuned, refuse_directory, reject
from whet.streamer.tuned import OF_MODEL, given, load_model, read_tuned, with_settings
from whet.workloads import BUILTIN_STREAMS, signs_stream
from whet.workloads.target import resolve_any

DEFAULT_STEPS = 4
DEFAULT_UNET_STEPS = 1  # of whet's own U-Net, whose frames are best after one
DEFAULT_STRENGTH = 0.5
_PIXEL_SIDE, _LATENT_SIDE = 64, 512  # of frames, where the U-Net's config does not say

Change = Callable[[], None]


@dataclass(frozen=True)
class ModelOptions:
    """Set how a diffusion model turns frames into frames. A user's own step takes only the size.

    Attributes:
        size: Height and width of the frames; None for the model's own.
        steps: Steps of the sampler a frame; None for 4, and for 1 with whet's own U-Net.
        sampler: The sampler's name, as `whet.models.diffusion.few_steps.SAMPLERS`; None for the scheduler's own.
        strength: The share of all timesteps that a frame goes back by; None for 0.5.
        prompt_embeds: A safetensors file with the prompt's embeddings instead.
        rolling: Whether frames are in flight together, each at a step of its own.
        seed: The seed of the noise.
        device: Where the model runs: "cpu", "cuda" or "cuda:1"; None for the CPU.
        dtype: The number format that it computes in: "float32", "bf16", "fp16" or "fp8"; None for float32.
        graphs: Whether its calls are recorded as CUDA graphs and replayed; None for yes on a GPU.
        backend: What compiles its calls: "inductor" or "tensorrt"; None for eager mode.
    """

    size: Size | None = None
    steps: int | None = None
    sampler: str | None = None
    strength: float | None = None
    guidance: Guidance = field(default_factory=Guidance)
    prompt: str | None = None
    negative: str = ""
    prompt_embeds: Path | None = None
    rolling: bool = True
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    graphs: bool | None = None
    backend: str | None = None

    def given(self) -> list[str]:
        """Return the command-line options that were given and that only a diffusion model takes."""
        prompts = {"prompt": "--prompt", "negative": "--negative-prompt", "prompt_embeds": "--prompt-embeds"}
        graphs = {"graphs": "--no-graphs"} if self.graphs is False else {}
        return given(self, {**prompts, **OF_MODEL, **graphs})

    def placement(self) -> Placement:
        """Return where the model runs, or raise OptionError where this computer cannot."""
        return Placement.of(device=self.device, dtype=self.dtype, graphs=self.graphs, backend=self.backend)


@dataclass(frozen=True)
class Opened:
    """Hold a model that is ready for frames.

    Attributes:
        name: The model's name in reports.
        size: Height and width of the frames that it takes.
        budget_s: Seconds that a frame may take by the workload; None where it does not say.
        prepare_prompt: Checks and encodes a prompt and a negative prompt in the caller's thread, and returns what sets
            them in the model's thread. None where the model takes no text.
        prepare_guidance: The same for a guidance. None where the model takes none.
        notes: What is not as the options say, in sentences. Some are added while the stream runs.
        settings: The settings of the stream around the model that whet tune found: attributes of `StreamOptions`.
    """

    name: str
    model: FrameModel
    size: Size
    sampler: str | None = None
    budget_s: float | None = None
    prepare_prompt: Callable[[str, str], Change] | None = None
    prepare_guidance: Callable[[Guidance], Change] | None = None
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def open_target(target: str | StreamWorkload, options: ModelOptions) -> Opened:
    """Open a stream's model.

    Args:
        target: A built-in name, a directory of diffusers or of a tuned stream, FILE.py:FUNCTION or
            package.module:FUNCTION of a StreamWorkload, or a StreamWorkload.

    Raises:
        TargetError: The target cannot be found or used.
        OptionError: An option does not fit it.
        MissingExtra: An optional package that it needs is not installed.
    """
    if isinstance(target, StreamWorkload):
        return _of_workload(target, options)
    if target in BUILTIN_STREAMS:
        return _of_directory(signs_stream.directory(), options)
    directory = Path(target).expanduser()
    if directory.is_dir():
        return _of_directory(directory, options)
    if ":" not in target:
        reject(target)
    workload = resolve_any(target)
    if not isinstance(workload, StreamWorkload):
        raise TargetError(f"{target} is a {type(workload).__name__}; whet stream runs a StreamWorkload")
    return _of_workload(workload, options)


def _of_workload(workload: StreamWorkload, options: ModelOptions) -> Opened:
    """Open a user's own step. Its size and channels are those of its example frames."""
    if found := options.given():
        raise OptionError(f"{workload.name} is a function of your own, which takes no {', '.join(found)}")
    with foreign(TargetError, f"the frames of {workload.name} cannot be read"):
        examples = list(islice(workload.frames, 1))
    if (
        not examples
        or not isinstance(examples[0], Tensor)
        or examples[0].ndim != 3
        or examples[0].shape[0] not in (1, 3)
    ):
        raise TargetError(f"the frames of {workload.name} must be tensors [C, H, W] with 1 or 3 channels, at least one")
    channels, height, width = examples[0].shape
    with foreign(TargetError, f"opening {workload.name} failed"):
        step: Any = workload.open()
    model = FrameModel(step, channels=channels, device=str(examples[0].device), reopen=workload.open)
    return Opened(workload.name, model, options.size or (height, width), budget_s=workload.frame_budget_s)


def _of_tuned(directory: Path, options: ModelOptions) -> Opened:
    """Open what whet tune made of a stream: its target with the settings found, and what stands for its models."""
    tuned = read_tuned(directory)
    opened = open_target(tuned.target, with_settings(directory, tuned, options))
    replacements = Replacements(opened.model.step)
    for name, model in tuned.models.items():
        if name not in replacements.names:
            raise TargetError(f"{tuned.target} has no {name} any more, which {directory} stands for; tune it again")
        replacements.replace(name, load_model(directory, model), model.shapes)
    return dataclasses.replace(opened, name=directory.resolve().name, settings=tuned.settings)


def _of_directory(directory: Path, options: ModelOptions) -> Opened:
    if is_tuned(directory):
        return _of_tuned(directory, options)
    if is_diffusers_directory(directory):
        return _of_diffusers(directory, options)
    if is_frame_unet(directory):
        return _of_frame_unet(directory, options)
    return refuse_directory(directory)


def _of_frame_unet(directory: Path, options: ModelOptions) -> Opened:
    """Open whet's own U-Net, which draws frames from noise, sees the last frame that came out, and takes a digit."""
    name = directory.resolve().name
    if options.strength is not None or options.negative or options.prompt_embeds is not None:
        raise OptionError(f"{name} draws each frame from noise, and takes no strength, negative prompt or embeddings")
    placement = options.placement()
    unet = load_unet(directory)
    side = unet.config.frame_size
    if options.size not in (None, (side, side)):
        raise OptionError(f"{name} has frames of {side} x {side}; leave --size out")
    unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    placement.move(unet)
    frames = UNetFrames(unet, _digit(options.prompt))
    notes = placement.record(frames)
    sampler = options.sampler or "lcm"
    step = DiffusionStep(
        frames,
        few_steps(sampler, frames.schedule, frames.prediction, 1.0),
        DEFAULT_UNET_STEPS if options.steps is None else options.steps,
        guidance=options.guidance,
        is_rolling=options.rolling,
        feeds_back=True,
        seed=options.seed,
    )

    def prepare_prompt(prompt: str, negative: str) -> Change:
        digit = frames.checked(_digit(prompt))
        return lambda: setattr(frames, "digit", digit)

    return Opened(
        name,
        FrameModel(step, channels=frames.channels, device=str(placement.device)),
        (side, side),
        sampler=sampler,
        prepare_prompt=prepare_prompt,
        prepare_guidance=partial(_prepare_guidance, step),
        notes=notes,
    )


def _digit(prompt: str | None) -> int | None:
    """Return the digit that a prompt names; None for an empty one.

    Raises:
        OptionError: It is no digit.
    """
    text = (prompt or "").strip()
    if text and not text.isdecimal():
        raise OptionError(f"--prompt {prompt!r}: this model takes a digit, as 3, or nothing")
    return int(text) if text else None


def _prepare_guidance(step: DiffusionStep, guidance: Guidance) -> Change:
    step.check_guidance(guidance)
    return lambda: setattr(step, "guidance", guidance)


def _of_diffusers(directory: Path, options: ModelOptions) -> Opened:
    placement = options.placement()
    parts = placement.move_parts(read_parts(directory))
    size = options.size or _size_of(parts)
    prompts = _Prompts(parts, options)
    frames = DiffusersFrames(parts, prompts.first(), size)
    notes = placement.record(frames)
    sampler = options.sampler or sampler_of(parts.scheduler.class_name)
    notes[:0] = _departures(parts, frames, options, sampler)
    strength = DEFAULT_STRENGTH if options.strength is None else options.strength
    step = DiffusionStep(
        frames,
        few_steps(
            sampler,
            frames.schedule,
            frames.prediction,
            strength,
            parts.scheduler.clip(sampler, is_latent=parts.autoencoder is not None),
        ),
        DEFAULT_STEPS if options.steps is None else options.steps,
        guidance=options.guidance,
        is_rolling=options.rolling,
        seed=options.seed,
    )

    def prepare_prompt(prompt: str, negative: str) -> Change:
        embeddings = prompts.of(prompt, negative)
        return lambda: setattr(frames, "prompt", embeddings)

    return Opened(
        directory.resolve().name,
        FrameModel(step, channels=frames.channels, device=str(placement.device)),
        size,
        sampler=sampler,
        prepare_prompt=prepare_prompt if parts.text_folders is not None else None,
        prepare_guidance=partial(_prepare_guidance, step),
        notes=notes,
    )


def _departures(parts: Parts, frames: DiffusersFrames, options: ModelOptions, sampler: str) -> list[str]:
    """Say what of the directory is not done as diffusers does it."""
    notes = []
    if options.sampler is None and not is_known(parts.scheduler.class_name):
        notes.append(f"whet has no sampler for {parts.scheduler.class_name}; the steps are those of {sampler}")
    if parts.unread:
        notes.append(unread_settings(parts.unread, sampler))
    if frames.embedded_weight is not None and options.guidance.kind != "embedded":
        notes.append(
            "the U-Net was distilled with guidance, and is told weight 1, which is none; --guidance embedded:8.5 tells "
            "it what diffusers' pipeline does"
        )
    return notes


def _size_of(parts: Parts) -> Size:
    """Return the size of frames that the U-Net was trained for, or a usual one."""
    sample = getattr(parts.unet.config, "sample_size", None)
    if parts.autoencoder is None:
        side = sample or _PIXEL_SIDE
    else:
        side = sample * 2**parts.num_latent_halvings if isinstance(sample, int) else _LATENT_SIDE
    height, width = (side, side) if isinstance(side, int) else side
    return int(height), int(width)


class _Prompts:
    """Turn what the user said of a prompt into embeddings."""

    def __init__(self, parts: Parts, options: ModelOptions) -> None:
        self._parts, self._options = parts, options
        self._encode: Callable[[str, str], Prompt] | None = None

    def first(self) -> Prompt | None:
        """Return the embeddings of the options' prompt; None without one."""
        options = self._options
        if options.prompt_embeds is not None:
            if options.prompt is not None or options.negative:
                raise OptionError("give --prompt or --prompt-embeds, not both")
            return read_prompt(options.prompt_embeds)
        if options.prompt is None and options.negative:
            raise OptionError("--negative-prompt goes with --prompt")
        return None if options.prompt is None else self.of(options.prompt, options.negative)

    def of(self, prompt: str, negative: str) -> Prompt:
        """Return the embeddings of a prompt and a negative prompt.

        Raises:
            TargetError: The directory has no text encoder.
        """
        if self._parts.text_folders is None:
            raise TargetError(
                f"{self._parts.directory} has no tokenizer and text_encoder; give --prompt-embeds FILE.safetensors"
            )
        if self._encode is None:
            self._encode = prompt_encoder(self._parts.text_folders)
        return self._encode(prompt, negative)
