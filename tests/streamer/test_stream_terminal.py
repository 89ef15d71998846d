"""What the terminal says of a stream that has ended."""

import pytest
from stream_fakes import made_report, spread

from whet.streamer.terminal import facts


@pytest.mark.parametrize(
    ("frame_s", "model_s", "said"),
    [
        (0.0208, 0.02, "the stream adds 800 µs to the model's time (4.0%)"),
        (0.0008, 0.0001, "the stream adds 700 µs to the model's time of 100 µs"),
        (0.02, 0.021, "the stream adds nothing measurable"),
    ],
)
def test_what_the_stream_adds_is_a_time_and_a_share_of_a_model_that_takes_longer(
    frame_s: float, model_s: float, said: str
) -> None:
    assert said in facts(made_report(frame=spread(frame_s), model=spread(model_s)))
