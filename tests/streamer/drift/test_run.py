"""A drift test finds what a model's own feedback does, and nothing where it is faithful."""

import numpy as np
import pytest
import torch
from stream_fakes import Delayed

import whet
from whet.errors import OptionError, TargetError
from whet.streamer.drift.departure import alone
from whet.streamer.drift.run import drift_test
from whet.streamer.model import FrameModel
from whet.streamer.sources import open_source, paced


def workload(open_step) -> whet.StreamWorkload:
    return whet.StreamWorkload(open=open_step, frames=[torch.rand(3, 48, 48)], name="echo")


def gaining():
    """Return a step whose colour gains 0.5 % a frame by its own feedback."""
    gain = [1.0]

    def step(frame):
        gain[0] *= 1.005
        return frame * torch.tensor([gain[0], 1.0, 1.0])[:, None, None]

    return step


def freezing():
    """Return a step that repeats one frame from the 100th on."""
    seen = []

    def step(frame):
        if len(seen) < 100:
            seen.append(frame)
        return seen[-1]

    return step


class Quick:
    """Change frames by `change(frame, share)`, whose share grows from 0 to 1 within the first ten frames."""

    def __init__(self, change):
        self._change = change
        self.reset()

    def reset(self):
        self._num = 0

    def __call__(self, frame):
        self._num += 1
        return self._change(frame, min(self._num, 10) / 10).clamp(0, 1)


class Late:
    """Return the frame three frames before."""

    def __init__(self):
        self.reset()

    def reset(self):
        self._frames = []

    def __call__(self, frame):
        self._frames.append(frame)
        return self._frames[max(0, len(self._frames) - 4)]


def blurred(frame):
    return torch.nn.functional.avg_pool2d(frame[None], 5, 1, 2, count_include_pad=False)[0]


QUICK = {
    "contrast": lambda frame, share: (frame - 0.5) * (1 + 1.2 * share) + 0.5,
    "tint": lambda frame, share: frame * torch.tensor([1, 1 - 0.4 * share, 1 - 0.6 * share])[:, None, None],
    "darkness": lambda frame, share: frame * (1 - 0.5 * share),
    "blur": lambda frame, share: torch.lerp(frame, blurred(blurred(blurred(frame))), share),
}
STYLES = {
    "negative": lambda: lambda frame: 1 - frame,
    "tint": lambda: lambda frame: frame.pow(0.7) * torch.tensor([1, 0.8, 0.6])[:, None, None],
    "blur": lambda: blurred,
    "little contrast": lambda: lambda frame: 0.3 * frame + 0.35,
    "late": Late,
}


@pytest.mark.parametrize("kind", QUICK)
def test_a_departure_within_the_first_second_is_found(kind):
    """It is over before the first part of the stream ends, and then the stream stays as it is."""
    found = drift_test(workload(lambda: Quick(QUICK[kind])), synthetic, 160)
    assert found.verdict.word == "drift" and found.verdict.departures
    assert found.verdict.from_frame <= 12
    assert any("departs by" in reason and "of the same frames alone" in reason for reason in found.verdict.reasons)
    assert found.to_json()["departures"][0]["from_frame"] <= 12


@pytest.mark.parametrize("kind", STYLES)
def test_a_style_is_no_departure(kind):
    found = drift_test(workload(STYLES[kind]), synthetic, 160)
    assert found.verdict.word == "no drift" and not found.verdict.departures, found.verdict.reasons


def test_a_model_with_frames_in_flight_is_compared_with_single_frames():
    model = FrameModel(Delayed(3))
    frames = {index: np.full((8, 8, 3), index, np.uint8) for index in (0, 7)}
    assert {index: int(image[0, 0, 0]) for index, image in alone(model, frames, (8, 8)).items()} == {0: 255, 7: 248}
    assert model.in_flight == 0


def synthetic(size):
    return open_source("synthetic:120", size=size)


@pytest.mark.parametrize(
    ("open_step", "word", "code"),
    [
        (lambda: lambda frame: frame * 0.9 + 0.05, "no drift", 0),
        (gaining, "drift", 1),
        (freezing, "drift", 1),
        (lambda: lambda frame: frame * torch.nan, "drift", 1),
    ],
    ids=["faithful", "gaining", "freezing", "broken"],
)
def test_a_model_that_drifts_is_found(open_step, word, code):
    seen = []
    found = drift_test(workload(open_step), synthetic, 240, on_answer=lambda: seen.append(1))
    assert (found.verdict.word, found.exit_code) == (word, code), found.sentence
    assert len(seen) == 240 and found.subject == "echo" and found.source == "synthetic"


def test_what_cannot_be_tested_is_refused():
    faithful = workload(lambda: lambda frame: frame)
    with pytest.raises(OptionError, match="at least 128 frames"):
        drift_test(faithful, synthetic, 60)
    with pytest.raises(TargetError, match="is live"):
        drift_test(faithful, lambda size: paced(synthetic(size)), 128)
    with pytest.raises(TargetError, match="a calibration takes at least 64 frames, and there are 20"):
        drift_test(faithful, lambda size: open_source("synthetic:20", size=size), 128)
