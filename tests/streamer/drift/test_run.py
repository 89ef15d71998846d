"""A drift test finds what a model's own feedback does, and nothing where it is faithful."""

import pytest
import torch

import whet
from whet.errors import OptionError, TargetError
from whet.streamer.drift.run import drift_test
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
