"""Clips for the tests of drift: a synthetic one that pans, and real footage where it is here."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from whet.streamer.drift.calibration import Thresholds, calibrate
from whet.streamer.drift.meter import DriftMeter
from whet.streamer.drift.report import DriftReport, report
from whet.streamer.drift.run import there_and_back

VIDEO = Path(__file__).parents[3].parent / "shared" / "data" / "video" / "nasa_13013.mp4"
Clip = list[np.ndarray]


def crop(image: np.ndarray, x: float, y: float, window: int, side: int) -> np.ndarray:
    """Return a window of an image at a place between pixels, scaled to side × side, uint8."""
    at = (torch.arange(side, dtype=torch.float64) + 0.5) * window / side
    size = torch.tensor([image.shape[1], image.shape[0]])
    grid = torch.stack(torch.meshgrid(at + x, at + y, indexing="xy"), dim=2) / size * 2 - 1
    tensor = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float64))[None]
    found = torch.nn.functional.grid_sample(tensor, grid[None], padding_mode="border", align_corners=False)
    return found[0].numpy().transpose(1, 2, 0).round().clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def panning() -> Clip:
    """360 frames of 32×32 pixels: a window that swings over a smooth random picture, each frame unlike the last 8."""
    random = np.random.default_rng(0)
    noise = torch.from_numpy(random.random((1, 3, 14, 24)))
    smooth = torch.nn.functional.interpolate(noise, (84, 144), mode="bicubic").clamp(0, 1)
    picture = np.rint(255 * smooth[0].numpy().transpose(1, 2, 0)).astype(np.uint8)
    swing = [(50 - 50 * np.cos(i / 36), 20 + 20 * np.sin(i / 25)) for i in range(360)]
    return [crop(picture, x, y, 32, 32) for x, y in swing]


@pytest.fixture(scope="session")
def footage() -> Callable[..., Clip]:
    """Real video, side × side: a window that moves slowly over the last scene, there and back."""
    if not VIDEO.is_file():
        pytest.skip("../shared/data/video is not here")
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(str(VIDEO)) as container:
        stream = container.streams[3]
        decoded = [one.to_ndarray(format="rgb24") for one in container.decode(stream)][240:]
    made: dict[tuple[int, int], Clip] = {}

    def at(side: int, num_frames: int = 600) -> Clip:
        if (side, num_frames) not in made:
            half = num_frames // 2
            way = [i * 150 / half for i in range(half)]
            one_way = [crop(decoded[int(place)], 90 + place, 10 + 0.4 * place, 180, side) for place in way]
            made[side, num_frames] = list(there_and_back(one_way, num_frames))
        return made[side, num_frames]

    return at


@pytest.fixture(scope="session")
def judged() -> Callable[..., DriftReport]:
    """Return a function that tests a stream, given its outputs and its inputs, against a calibration on the inputs."""
    known: dict[int, Thresholds] = {}

    def judge(outputs: Iterable[np.ndarray], inputs: Clip) -> DriftReport:
        if id(inputs) not in known:
            known[id(inputs)] = calibrate(inputs, num_frames=len(inputs))
        meter = DriftMeter(len(inputs))
        for output, shown in zip(outputs, inputs, strict=True):
            meter.add(output, shown)
        return report(meter.series(), known[id(inputs)], subject="test", source="a clip")

    return judge
