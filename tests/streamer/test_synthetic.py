"""The synthetic clip: the same each time, moving as it says, and still where it is asked to be."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.streamer.sources.synthetic import VELOCITY, SyntheticClip


def pictures(num_frames: int, **options: object) -> list[np.ndarray]:
    return [frame.image for frame in SyntheticClip(num_frames, **options)]  # type: ignore[arg-type]


def test_frames_depend_on_the_seed_alone() -> None:
    one, same, other = pictures(20, seed=3), pictures(20, seed=3), pictures(20, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_times_and_shapes() -> None:
    with SyntheticClip(5, size=(30, 50), rate=20) as clip:
        frames = list(clip)
        assert (clip.rate, clip.is_live, clip.name) == (20, False, "synthetic")
    assert [frame.time_s for frame in frames] == [0, 0.05, 0.1, 0.15, 0.2]
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]
    for frame in frames:
        assert frame.image.shape == (30, 50, 3)
        assert frame.image.dtype == np.uint8
        assert frame.image.flags.c_contiguous


def test_the_background_moves_as_it_says() -> None:
    frames = pictures(40, size=(64, 64))
    down, right = VELOCITY
    unmoved, still = [], []
    for before, after in itertools.pairwise(frames[:21]):
        unmoved.append((after[:-down, :-right] == before[down:, right:]).all(axis=2).mean())
        still.append((after == before).all(axis=2).mean())
    assert np.mean(unmoved) > 0.75  # the rest are the edges of shapes that move otherwise, and what they uncover
    assert np.mean(still) < 0.2


def test_there_is_something_to_measure() -> None:
    picture = pictures(1, size=(64, 64))[0].astype(np.float64)
    assert picture.std() > 30
    second = picture[1:-1, :-2] - 2 * picture[1:-1, 1:-1] + picture[1:-1, 2:]
    assert second.std() > 10  # the fine texture


@given(st.integers(0, 20), st.integers(1, 10))
@settings(max_examples=20)
def test_nothing_moves_in_the_still_span_and_the_motion_goes_on_after_it(begin: int, length: int) -> None:
    frames = pictures(40, size=(16, 16), still=(begin, begin + length))
    moving = pictures(40, size=(16, 16))
    for index in range(40):
        if index < begin:
            assert np.array_equal(frames[index], moving[index])
        elif index < begin + length:
            assert np.array_equal(frames[index], moving[begin])
        else:
            assert np.array_equal(frames[index], moving[index - length + 1])


@pytest.mark.parametrize("size", [(1, 1), (2, 300), (7, 5)])
def test_small_and_narrow_sizes(size: tuple[int, int]) -> None:
    assert {picture.shape for picture in pictures(300, size=size)} == {(*size, 3)}


def test_options_out_of_range() -> None:
    with pytest.raises(OptionError, match="at least one frame"):
        SyntheticClip(0)
    for span in ((5, 5), (-1, 3)):
        with pytest.raises(OptionError, match="a still span ends after it begins"):
            SyntheticClip(9, still=span)
    with pytest.raises(OptionError, match="pixels"):
        SyntheticClip(9, size=(0, 4))
