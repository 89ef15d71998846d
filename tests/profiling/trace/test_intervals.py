"""Interval arithmetic against sets of moments, counted one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whet.profiling.trace.intervals import EMPTY, Intervals, span, union

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=12)


def made(found: list[tuple[int, int]]) -> tuple[Intervals, set[int]]:
    """Intervals from (start, length), and the moments in them."""
    starts = np.array([start for start, _ in found], np.int64)
    ends = np.array([start + length for start, length in found], np.int64)
    return union(starts, ends), {moment for start, length in found for moment in range(start, start + length)}


def moments(intervals: Intervals) -> set[int]:
    return {
        moment
        for start, end in zip(intervals.starts_ns.tolist(), intervals.ends_ns.tolist(), strict=True)
        for moment in range(start, end)
    }


def is_canonical(intervals: Intervals) -> bool:
    edges = np.stack([intervals.starts_ns, intervals.ends_ns], axis=1).ravel()
    return bool((np.diff(edges) > 0).all())  # in order, none empty, none touching


@given(pairs)
def test_union(found: list[tuple[int, int]]) -> None:
    intervals, expected = made(found)
    assert moments(intervals) == expected
    assert intervals.length_ns == len(expected)
    assert is_canonical(intervals)


@given(pairs, pairs)
def test_or_and_minus(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    (mine, my_moments), (theirs, their_moments) = made(left), made(right)
    for result, expected in (
        (mine | theirs, my_moments | their_moments),
        (mine & theirs, my_moments & their_moments),
        (mine - theirs, my_moments - their_moments),
    ):
        assert moments(result) == expected
        assert is_canonical(result)


@given(pairs, pairs)
def test_lengths_within(found: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    intervals, expected = made(found)
    starts = np.array([start for start, _ in windows], np.int64)
    ends = np.array([start + length for start, length in windows], np.int64)
    assert intervals.lengths_ns(starts, ends).tolist() == [
        len(expected & set(range(start, start + length))) for start, length in windows
    ]


@given(pairs, st.lists(st.integers(-5, 60), max_size=20))
def test_holds(found: list[tuple[int, int]], asked: list[int]) -> None:
    intervals, expected = made(found)
    assert intervals.holds(np.array(asked, np.int64)).tolist() == [moment in expected for moment in asked]


def test_nothing() -> None:
    whole = span(3, 10)
    assert (whole & EMPTY).length_ns == 0
    assert (whole | EMPTY).length_ns == (whole - EMPTY).length_ns == 7
    assert len(EMPTY) == len(span(4, 4)) == 0
    assert EMPTY.lengths_ns(np.array([1, 2]), np.array([5, 5])).tolist() == [0, 0]


def test_times_beyond_2_to_the_53_stay_exact() -> None:
    far = 2**61
    assert (span(far, far + 3) - span(far + 1, far + 2)).length_ns == 2
