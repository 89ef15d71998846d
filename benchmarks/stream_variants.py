"""The sides of benchmarks/stream_peers.py: what turns the frames of one clip into frames with one U-Net.

Each side is built in a process of its own, and makes so many final frames whenever it is asked. The seconds of a final
frame are counted between two final frames, so that opening and warming up are left out. A side called by a plain loop
gets its frames from the same synthetic clip as a stream, and also turns images into images.

SIDES: name -> build(model directory).
"""

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from stream_tables import DIFFUSERS, OPENVINO
from torch import Tensor

from whet.models.diffusion.colour import seen_in_grey
from whet.models.diffusion.unet import FrameUNet, UNetConfig, load_unet
from whet.models.samplers import Schedule, lcm_spaced
from whet.streamer.frames import Image
from whet.streamer.loop import Answer
from whet.streamer.sinks.sink import NullSink
from whet.streamer.sources.synthetic import SyntheticClip
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.tuned import TunedStream, read_tuned, write_tuned

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}  # of signs-stream
INT8 = "unet_int8.xml"
_BLANK = 3  # frames of a plain loop that are not timed
_CALIBRATION_FRAMES = 16
_CALIBRATION_STEPS = 4

Turn = dict[str, Any]
Loop = Callable[[Image], Image]
Noise = Callable[[Sequence[int]], Tensor]


class Side(Protocol):
    """What can be asked for final frames."""

    def turn(self, steps: int, num_frames: int) -> Turn:
        """Return the seconds of a final frame as `s_per_frame`, and what else the side knows of its times."""


def write_random_unet(directory: Path, config: UNetConfig | None = None) -> Path:
    """Write a U-Net with random weights. Those that start at 0 are random too, so that frames differ from noise."""
    torch.manual_seed(0)
    unet = FrameUNet(config)
    for name, parameter in unet.named_parameters():
        if name.endswith("weight") and not parameter.any():
            torch.nn.init.xavier_uniform_(parameter)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(unet.state_dict(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(unet.config.as_json()), encoding="utf-8")
    return directory


class PlainLoop:
    """A loop over frames, one after the other.

    Args:
        open_loop: Returns what makes an image of an image, for a number of steps, with nothing kept of earlier frames.
        side: Pixels of a frame, each way.
    """

    def __init__(self, open_loop: Callable[[int], Loop], side: int) -> None:
        self._open_loop, self._side = open_loop, side

    def turn(self, steps: int, num_frames: int) -> Turn:
        loop = self._open_loop(steps)
        began = 0.0
        for frame in SyntheticClip(_BLANK + num_frames, size=(self._side, self._side)):
            loop(frame.image)
            if frame.index == _BLANK - 1:
                began = time.perf_counter()
        return {"s_per_frame": (time.perf_counter() - began) / num_frames}


class StreamSide:
    """whet stream on a directory.

    Args:
        target: The directory.
        options: What `StreamOptions` takes, but for the number of steps.
    """

    def __init__(self, target: Path, **options: Any) -> None:
        self._target, self._options = target, options

    def open(self, steps: int, source: Callable[[tuple[int, int]], Any], budget_s: float | None = None) -> Stream:
        """Open a stream from a source that is made for the model's size of frames."""
        return Stream(str(self._target), source, StreamOptions(steps=steps, budget_s=budget_s, **self._options))

    def is_rolling(self, steps: int) -> bool:
        """Return whether frames take their steps in a rolling batch."""
        return bool(self._options.get("rolling", True))

    def turn(self, steps: int, num_frames: int) -> Turn:
        # The last frames come out while the batch empties, and take less time each. They are not timed.
        num_emptying = steps - 1 if self.is_rolling(steps) else 0
        at: list[tuple[float, float, float]] = []  # the clock, and the sums of the frames' and the model's times

        def note(answer: Answer) -> None:
            timings = stream.timings
            at.append((answer.ready_s, timings.frame_s.total_s, timings.model_s.total_s))

        with self.open(steps, lambda size: SyntheticClip(1 + num_frames + num_emptying, size=size)) as stream:
            stream.run(NullSink(), on_answer=note)
        wall, frame, model = ((last - first) / num_frames for first, last in zip(at[0], at[num_frames], strict=True))
        return {"s_per_frame": wall, "overhead": frame / model - 1, "with_hand_over": wall / model - 1}


class TunedSide(StreamSide):
    """whet stream on what whet tune made of the directory.

    A tuned stream with the steps that are asked for runs as it is, but for still frames, which are not skipped. Other
    steps take the models that were tuned for one row, one frame after the other.

    Args:
        tuned: A directory of tuned streams.
    """

    def __init__(self, tuned: Path) -> None:
        super().__init__(tuned)
        self._scratch = tempfile.TemporaryDirectory(prefix="whet-tuned-")
        self._found = {directory: read_tuned(directory) for directory in sorted(tuned.iterdir())}

    def open(self, steps: int, source: Callable[[tuple[int, int]], Any], budget_s: float | None = None) -> Stream:
        """Open the stream with so many steps and the models that tuning made."""
        directory = Path(self._scratch.name) / str(steps)
        if not directory.exists():
            place, found = self._for(steps)
            settings = {**found.settings, "steps": steps, "rolling": self.is_rolling(steps), "stillness": None}
            directory.mkdir()
            for model in found.models.values():
                shutil.copytree(place / model.directory, directory / model.directory)
            write_tuned(directory, found.model_copy(update={"settings": settings | {"sampler": "lcm"}}))
        return Stream(str(directory), source, StreamOptions(budget_s=budget_s))

    def is_rolling(self, steps: int) -> bool:
        """Return whether frames take their steps in a rolling batch."""
        settings = self._for(steps)[1].settings
        return settings["steps"] == steps and steps > 1 and bool(settings["rolling"])

    def _for(self, steps: int) -> tuple[Path, TunedStream]:
        """Return the tuned stream with so many steps, or else the one for a row."""
        every = self._found.items()
        exact = [one for one in every if one[1].settings["steps"] == steps]
        single = [one for one in every if one[1].settings["steps"] == 1 or not one[1].settings["rolling"]]
        return (exact or single)[0]


class _FrameLoop:
    """What the plain loops of the frame U-Net share: the grey view, the frame before, and images in and out."""

    def __init__(self, config: UNetConfig, noise: Noise) -> None:
        self._noise = noise
        self._factor = config.frame_size // config.grey_size
        self._shape = (1, 3, config.frame_size, config.frame_size)
        self._previous = torch.zeros(self._shape)
        self._digit = torch.tensor([config.null_digit])

    def __call__(self, image: Image) -> Image:
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 127.5 - 1
        clean = self._denoised(seen_in_grey(pixels, self._factor), self._previous)
        answer = ((clean.clamp(-1, 1) + 1) * 127.5).round()
        self._previous = answer / 127.5 - 1
        made: Image = answer[0].permute(1, 2, 0).to(torch.uint8).numpy()
        return made

    def _denoised(self, grey: Tensor, previous: Tensor) -> Tensor:
        raise NotImplementedError


class DiffusersLoop(_FrameLoop):
    """The loop of diffusers' documentation: set_timesteps, then the model and `LCMScheduler.step` for each timestep."""

    def __init__(self, unet: Any, steps: int, noise: Noise = torch.randn) -> None:
        super().__init__(unet.config, noise)
        self._unet, self._steps = unet, steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that diffusers finds beside it
            from diffusers import LCMScheduler
        self._scheduler = LCMScheduler(**BETAS, prediction_type="v_prediction")

    @torch.inference_mode()
    def _denoised(self, grey: Tensor, previous: Tensor) -> Tensor:
        scheduler = self._scheduler
        scheduler.set_timesteps(self._steps)
        noise = self._noise(self._shape)
        sample = scheduler.add_noise(torch.zeros_like(noise), noise, scheduler.timesteps[:1])
        for timestep in scheduler.timesteps:
            velocity = self._unet(sample, timestep[None].float(), grey, previous, self._digit)
            sample = scheduler.step(velocity, timestep, sample, return_dict=False)[0]
        return sample


class OpenVINOLoop(_FrameLoop):
    """The sums of latent consistency models (Luo et al., 2023, arXiv:2310.04378) around a compiled OpenVINO model."""

    def __init__(self, compiled: Any, config: UNetConfig, steps: int, noise: Noise = torch.randn) -> None:
        super().__init__(config, noise)
        self._request = compiled.create_infer_request()
        timesteps = lcm_spaced(steps)
        alphas = [float(Schedule.scaled_linear().alphas_cumprod[timestep]) for timestep in timesteps]
        self._steps = []
        for index, (timestep, alpha) in enumerate(zip(timesteps, alphas, strict=True)):
            scaled = 10.0 * timestep
            keeps, takes = 0.25 / (scaled**2 + 0.25), scaled / (scaled**2 + 0.25) ** 0.5
            following = alphas[index + 1] if index + 1 < steps else 1.0
            self._steps.append((np.float32([timestep]), alpha**0.5, (1 - alpha) ** 0.5, keeps, takes, following))

    def _denoised(self, grey: Tensor, previous: Tensor) -> Tensor:
        told = (grey.numpy(), previous.numpy(), self._digit.numpy())
        sample = self._steps[0][2] * self._noise(self._shape).numpy()
        for timestep, signal, noise, keeps, takes, following in self._steps:
            velocity = self._request.infer([sample, timestep, *told])[0]
            clean = takes * (signal * sample - noise * velocity) + keeps * sample
            sample = clean
            if following < 1:
                fresh = self._noise(self._shape).numpy()
                sample = following**0.5 * clean + (1 - following) ** 0.5 * fresh
        return torch.from_numpy(np.ascontiguousarray(sample))


def write_int8(directory: Path) -> Path:
    """Quantise the U-Net of a directory with NNCF, for frames one by one, and write it beside its weights.

    It is calibrated on what the U-Net sees while it makes frames of the synthetic clip.
    """
    from whet.core.artefact.openvino import import_openvino
    from whet.techniques.quantisation import openvino_int8

    openvino = import_openvino()  # without telemetry
    unet = load_unet(directory)
    seen: list[tuple[Tensor, ...]] = []
    with unet.register_forward_pre_hook(lambda _, inputs: seen.append(inputs)):
        loop = DiffusersLoop(unet, _CALIBRATION_STEPS)
        for frame in SyntheticClip(_CALIBRATION_FRAMES, size=(unet.config.frame_size, unet.config.frame_size)):
            loop(frame.image)
    batches = [tuple(x.clone() for x in inputs) for inputs in seen]  # tensors of inference mode cannot be traced
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracers warn about each other's deprecations
        # NNCF 3.4 ends with a segmentation fault on the graph that OpenVINO traces by itself.
        model = openvino.convert_model(torch.export.export(unet, batches[0]))
    quantised, _ = openvino_int8.quantize(
        model, batches, preset="performance", ranges="mean", smooth_quant=False, keep=0, quantizes_attention=True
    )
    openvino.save_model(quantised, directory / INT8)
    return directory / INT8


def _diffusers_loop(directory: Path) -> Side:
    unet = load_unet(directory)
    return PlainLoop(lambda steps: DiffusersLoop(unet, steps), unet.config.frame_size)


def _openvino_loop(directory: Path) -> Side:
    from whet.core.artefact.openvino import core

    config = load_unet(directory).config
    compiled = core().compile_model(directory / INT8, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return PlainLoop(lambda steps: OpenVINOLoop(compiled, config, steps), config.frame_size)


STREAM, ROLLING, TUNED = "whet stream, one by one", "whet stream, rolling batch", "whet stream, tuned"
TUNED_DIRECTORY = "tuned"  # below the directory of the U-Net

SIDES: dict[str, Callable[[Path], Side]] = {
    DIFFUSERS: _diffusers_loop,
    OPENVINO: _openvino_loop,
    STREAM: lambda directory: StreamSide(directory, rolling=False),
    ROLLING: lambda directory: StreamSide(directory, rolling=True),
    TUNED: lambda directory: TunedSide(directory / TUNED_DIRECTORY),
}
