"""Times of frames: exact where the timestamps are in order, never decreasing where they are not."""

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from whet.streamer.sources.timeline import Timeline

RATE = Fraction(25)
TICKS = st.integers(-(10**7), 10**7)


def times(timestamps: list[Fraction | None], rate: Fraction | None = RATE) -> tuple[list[float], Counter[str]]:
    problems: Counter[str] = Counter()
    timeline = Timeline(rate, problems)
    return [timeline.time_s(one) for one in timestamps], problems


@given(st.lists(TICKS, min_size=1))
def test_timestamps_in_order_are_exact(ticks: list[int]) -> None:
    ticks.sort()
    found, problems = times([Fraction(tick, 90_000) for tick in ticks])
    assert found == [(tick - ticks[0]) / 90_000 for tick in ticks]
    assert not problems


@given(st.lists(st.none() | TICKS, min_size=1))
def test_times_never_decrease_and_what_was_mended_is_counted(ticks: list[int | None]) -> None:
    found, problems = times([None if tick is None else Fraction(tick, 90_000) for tick in ticks])
    assert found[0] == 0
    assert found == sorted(found)
    assert problems["frames without a timestamp"] == ticks.count(None)


def test_a_frame_without_a_timestamp_follows_by_one_period() -> None:
    found, problems = times([Fraction(7), None, Fraction(7) + Fraction(2, 25), None])
    assert found == [0, 0.04, 0.08, 0.12]
    assert problems == {"frames without a timestamp": 2}
    assert times([None, None], rate=None)[0] == [0, 0]


def test_the_first_timestamp_after_a_frame_without_one_follows_by_one_period() -> None:
    assert times([None, Fraction(90), Fraction(91)])[0] == [0, 0.04, 1.04]


def test_a_small_step_back_is_held_and_a_large_one_begins_anew() -> None:
    small, problems = times([Fraction(0), Fraction(2), Fraction(1), Fraction(3)])
    assert small == [0, 2, 2, 3]
    assert problems == {"timestamps that go back": 1}
    joined, problems = times([Fraction(100), Fraction(102), Fraction(0), Fraction(1), Fraction(2)])
    assert joined == [0, 2, 2.04, 3.04, 4.04]
    assert problems == {"timestamps that go back": 1}
