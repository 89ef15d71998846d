"""Build signs-stream: a U-Net that draws a coloured hand from a small grey view of it, and a digit."""

import math
from pathlib import Path

import torch
from torch import Tensor

from whet.core.workload import StreamWorkload
from whet.errors import TargetError
from whet.models.diffusion.few_steps import few_steps
from whet.models.diffusion.pipeline import DiffusionStep
from whet.models.diffusion.unet import load_unet
from whet.models.diffusion.unet_frames import UNetFrames
from whet.workloads import WEIGHTS
from whet.workloads.signs_data import FRAME
from whet.workloads.weights import FILE

NAME = "signs-stream"
STEPS = 1  # more are noisier: see docs/results.md

_NUM_FRAMES = 32


def directory(weights: Path = WEIGHTS) -> Path:
    """Return the directory of the trained U-Net, or raise TargetError where it is not there."""
    found = weights / NAME
    if not (found / FILE).is_file():
        raise TargetError(
            f"{found} has no {FILE}: in a clone of whet, train it with "
            f"python -m benchmarks.built_in_weights {NAME} --data FILE"
        )
    return found


def build(weights: Path = WEIGHTS) -> StreamWorkload:
    """Return the stream with one step a frame, and frames of a bright disc that moves.

    Raises:
        TargetError: `weights` lacks signs-stream/model.safetensors.
    """
    place = directory(weights)

    def open_step() -> DiffusionStep:
        unet = load_unet(place)
        unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        frames = UNetFrames(unet)
        return DiffusionStep(
            frames, few_steps("lcm", frames.schedule, frames.prediction, 1.0), STEPS, is_rolling=False, feeds_back=True
        )

    return StreamWorkload(open=open_step, frames=[_disc(i, FRAME) for i in range(_NUM_FRAMES)], name=NAME)


def _disc(index: int, side: int) -> Tensor:
    """Return a frame of a bright disc on a grey ground, [3, side, side] from 0 to 1."""
    angle = 2 * math.pi * index / _NUM_FRAMES
    places = (torch.arange(side) + 0.5) / side
    y, x = torch.meshgrid(places, places, indexing="ij")
    distance = ((x - 0.5 - 0.15 * math.cos(angle)) ** 2 + (y - 0.5 - 0.15 * math.sin(angle)) ** 2).sqrt()
    return (0.3 + 0.5 * (distance < 0.25)).expand(3, -1, -1).contiguous()
