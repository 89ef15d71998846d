"""A stream's frames can be timed and compared like the calls of a model."""

import pytest
import torch
from safetensors.torch import load_file

import whet
from whet.core.workload.measurables import StreamFrames, measurable_of
from whet.errors import TargetError


def frames(num: int) -> list[torch.Tensor]:
    return [torch.full((3, 4, 4), k / 100) for k in range(num)]


def adding():
    """Return a step that adds to each frame how many came before it, in one piece of memory."""
    seen, memory = [0], torch.empty(3, 4, 4)

    def step(frame):
        seen[0] += 1
        return None if seen[0] == 1 else torch.add(frame, seen[0] - 1, out=memory)

    return step


def test_a_call_is_a_frame_and_the_evidence_is_a_new_streams(tmp_path):
    measurable = measurable_of(whet.StreamWorkload(open=adding, frames=frames(5)))
    assert isinstance(measurable, StreamFrames)
    with measurable.measuring():
        measurable.warm_up()
        for _ in range(20):
            measurable.once()
    found = load_file(measurable.evidence(tmp_path).file)
    assert len(found) == 4
    for k in range(1, 5):
        torch.testing.assert_close(found[f"{k - 1}.0"], torch.full((3, 4, 4), k / 100 + k))


@pytest.mark.parametrize("given", [[], [torch.zeros(4, 4)], [[0.0]]])
def test_streams_without_frames_are_refused(given):
    with pytest.raises(TargetError, match=r"must be tensors \[C, H, W\]"):
        measurable_of(whet.StreamWorkload(open=adding, frames=given))
