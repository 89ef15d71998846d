"""What the terminal says of a stream that has ended."""

import pytest

from whet.streamer.report import Spread, StreamReport
from whet.streamer.terminal import facts


def spread(seconds: float) -> Spread:
    return Spread(seconds, seconds, seconds, seconds, 200)


@pytest.mark.parametrize(
    ("frame_s", "model_s", "said"),
    [
        (0.0208, 0.02, "the stream adds 800 µs to the model's time (4.0%)"),
        (0.0008, 0.0001, "the stream adds 700 µs to the model's time of 100 µs"),
    ],
)
def test_what_the_stream_adds_is_a_time_and_a_share_of_a_model_that_takes_longer(
    frame_s: float, model_s: float, said: str
) -> None:
    report = StreamReport(
        target="t",
        source="s",
        sink="null",
        size=(16, 16),
        steps=1,
        sampler="lcm",
        counts={"arrived": 200, "final": 200},
        problems={},
        wall_s=1.0,
        final_fps=10.0,
        jitter_s=None,
        budget_s=None,
        late_share=None,
        busy="",
        frame=spread(frame_s),
        model=spread(model_s),
        latency=None,
        interval=None,
    )
    assert said in facts(report)
