"""How a picture takes the size that a model wants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError, TargetError
from whet.streamer.frames import Fit, check_rate, check_size, placed

SIDES = st.integers(1, 300)


@given(SIDES, SIDES, SIDES, SIDES)
def test_a_crop_covers_its_size_and_keeps_the_aspect(height: int, width: int, rows: int, columns: int) -> None:
    try:
        place = placed(height, width, (rows, columns), "crop")
    except TargetError:
        assert max(rows / height, columns / width) > 16 * min(rows / height, columns / width)
        return
    assert place.height >= rows
    assert place.width >= columns
    assert place.height == rows or place.width == columns
    scale = max(rows / height, columns / width)
    assert abs(place.height - height * scale) <= 0.5 + 1e-9
    assert abs(place.width - width * scale) <= 0.5 + 1e-9
    assert 0 <= place.height - rows - 2 * place.top <= 1
    assert 0 <= place.width - columns - 2 * place.left <= 1


def test_known_placements() -> None:
    assert placed(270, 480, None, "crop").size == (270, 480)
    crop = placed(270, 480, (135, 135), "crop")
    assert (crop.height, crop.width, crop.top, crop.left) == (135, 240, 0, 52)
    stretched = placed(270, 480, (10, 20), "stretch")
    assert (stretched.height, stretched.width, stretched.top, stretched.left) == (10, 20, 0, 0)
    wide_pixels = placed(100, 100, (50, 50), "crop", pixel_aspect=2)
    assert (wide_pixels.height, wide_pixels.width, wide_pixels.left) == (50, 100, 25)


def test_a_cut_is_the_centre_and_contiguous() -> None:
    scaled = np.arange(4 * 7 * 3, dtype=np.uint8).reshape(4, 7, 3)
    cut = placed(4, 7, (4, 3), "crop").cut(scaled)
    assert np.array_equal(cut, scaled[:, 2:5])
    assert cut.flags.c_contiguous


@given(SIDES, SIDES, SIDES, SIDES)
def test_padding_keeps_the_whole_picture_in_the_middle(height: int, width: int, rows: int, columns: int) -> None:
    place = placed(height, width, (rows, columns), "pad")
    padded = place.cut(np.full((place.height, place.width, 3), 200, np.uint8))
    assert padded.shape == (rows, columns, 3)
    assert (padded == 200).all(-1).sum() == place.height * place.width  # nothing is cut off
    assert place.height == rows or place.width == columns
    bright = np.argwhere(padded[..., 0])
    for (first, last), side in zip(zip(bright.min(0), bright.max(0), strict=True), (rows, columns), strict=True):
        assert abs(first - (side - 1 - last)) <= 1


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ("crop", "frames of 480 x 270 have another aspect than 64 x 64: 44% of each is cut off; --fit pad or"),
        ("pad", "black bars take 44% of each"),
        ("stretch", "they are stretched by 1.78"),
    ],
)
def test_another_aspect_is_said(fit: Fit, said: str) -> None:
    assert said in placed(270, 480, (64, 64), fit).note
    assert placed(270, 480, (540, 960), fit).note == ""
    assert placed(1080, 1920, (271, 480), fit).note == "", "a pixel is no other aspect"
    assert "of 1024 x 576 have" in placed(576, 720, (64, 64), fit, pixel_aspect=64 / 45).note


def test_a_picture_that_is_a_line_is_not_cropped() -> None:
    with pytest.raises(TargetError, match="pad it or stretch it instead"):
        placed(1, 10_000, (512, 512), "crop")
    assert placed(1, 10_000, (512, 512), "stretch").size == (512, 512)


def test_options_out_of_range() -> None:
    for size in ((0, 4), (4, -1), (4, 16_385)):
        with pytest.raises(OptionError, match="1 to 16,384 pixels"):
            check_size(size, "crop")
    with pytest.raises(OptionError, match="--fit is one of crop, pad, stretch"):
        check_size(None, "fill")  # type: ignore[arg-type]
    for rate in (0, -1, 1001, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="at most 1,000 frames/s"):
            check_rate(rate)
    check_size((1, 16_384), "stretch")
    check_rate(None)
    check_rate(29.97)
