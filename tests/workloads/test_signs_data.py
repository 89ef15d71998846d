"""Photos of signs: who is in them, how they are divided, and clips of them whose flow is known."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sign_flow import flow, is_inside
from sign_photos import archive, ramps

from whet.errors import OptionError, TargetError
from whet.workloads.signs_data import (
    FRAME,
    ClipMaker,
    camera_frames,
    people,
    read_photos,
    runs,
    split_photos,
)

ARCHIVE = Path(__file__).parents[3] / "shared/data/images/sign_digits.tar"
needs_archive = pytest.mark.skipif(not ARCHIVE.is_file(), reason="../shared/data/images/sign_digits.tar is not here")


def test_photos_are_sorted_by_their_numbers(tmp_path):
    entries = [("Dataset/1/IMG_20.JPG", 50), ("LICENSE", b"text"), ("Dataset/0/IMG_9.JPG", 100)]
    photos = read_photos(archive(tmp_path / "signs.tar", entries))
    assert photos.digits_N.tolist() == [0, 1]
    assert photos.people_N.tolist() == [0, 0]
    assert photos.images_NCHW.shape == (2, 3, 100, 100)
    assert (photos.images_NCHW[0] == 100).all()
    assert (photos.images_NCHW[1] == 50).all()


@pytest.mark.parametrize(
    ("entries", "said"),
    [([("LICENSE", b"text")], "holds no photos"), ([("0/IMG_1.JPG", b"no photo")], "cannot be read")],
)
def test_wrong_archives_are_refused(tmp_path, entries, said):
    with pytest.raises(TargetError, match=said):
        read_photos(archive(tmp_path / "signs.tar", entries))


def test_missing_and_damaged_archives_are_refused(tmp_path):
    pytest.importorskip("PIL")
    with pytest.raises(TargetError, match="No such file"):
        read_photos(tmp_path / "signs.tar")
    (tmp_path / "signs.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(TargetError, match="cannot be read"):
        read_photos(tmp_path / "signs.tar")


@pytest.mark.parametrize(
    ("digits", "wanted"),
    [
        ([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]),
        ([0, 1, 8, 8, 9, 0], [0, 0, 0, 0, 0, 1]),  # 8 was taken twice
        ([0, 2, 1, 3, 0], [0, 0, 0, 0, 1]),  # 1 was left out at first
        ([3, 4, 0, 3], [0, 0, 1, 1]),
        ([], []),
    ],
)
def test_people_by_hand(digits, wanted):
    assert people(digits) == wanted


@given(st.lists(st.integers(0, 9)))
def test_runs_cover_all_photos_and_people_are_unions_of_runs(digits):
    found = runs(digits)
    assert [place for run in found for place in run] == list(range(len(digits)))
    for run in found:
        shown = [digits[place] for place in run]
        assert shown == sorted(set(shown))
    numbers = people(digits)
    assert all(len({numbers[place] for place in run}) == 1 for run in found)
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(numbers))


def test_split_keeps_people_apart_and_depends_on_the_seed():
    photos = ramps(num_people=20)
    parts = split_photos(photos)
    found = [set(part.people_N.tolist()) for part in parts.values()]
    assert [len(one) for one in found] == [16, 2, 2]
    assert set.union(*found) == set(range(20))
    assert sum(map(len, parts.values())) == len(photos)
    again, other = split_photos(photos), split_photos(photos, seed=1)
    assert torch.equal(again["test"].people_N, parts["test"].people_N)
    assert not torch.equal(other["test"].people_N, parts["test"].people_N)


def test_two_people_cannot_be_split():
    with pytest.raises(OptionError, match="at least 3 people are needed; got 2"):
        split_photos(ramps(num_people=2))


def test_clips_depend_on_seed_and_number_alone():
    maker, times = ClipMaker(ramps()), torch.arange(3).expand(3, -1)
    clips = maker.make([5, 45, 7], times)
    alone = ClipMaker(ramps()).make([45], times[:1])
    torch.testing.assert_close(alone.frames_BTCHW[0], clips.frames_BTCHW[1], rtol=0, atol=1e-6)
    assert torch.equal(alone.windows_BT23[0], clips.windows_BT23[1])
    assert clips.digits_B.tolist() == [5, 5, 7]  # 45 shows photo 5 of 40, as 5 does
    assert not torch.equal(clips.windows_BT23[0], clips.windows_BT23[1])
    other = ClipMaker(ramps(), seed=1).make([45], times[:1])
    assert not torch.equal(other.windows_BT23, alone.windows_BT23)
    later = maker.make([5], torch.tensor([[2]]))
    torch.testing.assert_close(later.frames_BTCHW[0, 0], clips.frames_BTCHW[0, 2], rtol=0, atol=1e-6)


def warped(clips):
    """Return each next frame, fetched back along the flow."""
    y, x = torch.meshgrid(torch.arange(FRAME), torch.arange(FRAME), indexing="ij")
    moved = flow(clips).flatten(0, 1)
    to_x, to_y = x + moved[:, 0], y + moved[:, 1]  # pixels
    grid = torch.stack([(2 * to_x + 1) / FRAME - 1, (2 * to_y + 1) / FRAME - 1], -1).float()
    following = clips.frames_BTCHW[:, 1:].flatten(0, 1)
    return F.grid_sample(following, grid, align_corners=False).view_as(clips.frames_BTCHW[:, 1:])


def error(found, clips):
    """Return the magnitudes of the differences to the frames themselves, where the flow counts."""
    difference = (found - clips.frames_BTCHW[:, :-1]).abs().mean(2)
    return difference[is_inside(clips)]


def test_flow_is_exact_on_ramps():
    """Neither the window nor the warp blurs an affine image, so nothing but rounding remains."""
    clips = ClipMaker(ramps()).make(range(40), torch.arange(0, 40, 4).expand(40, -1))
    assert is_inside(clips).float().mean() > 0.5
    assert flow(clips).abs().amax() > 2
    assert error(warped(clips), clips).max() < 2e-3
    still = clips.frames_BTCHW[:, 1:]
    assert error(still, clips).max() > 0.02


@pytest.mark.parametrize("number", range(4))
def test_motion_is_smooth_and_small(number):
    clips = ClipMaker(ramps()).make([number], torch.arange(300)[None])
    assert 0 < flow(clips).abs().amax() < 4  # pixels a frame
    assert (clips.windows_BT23[..., 2].abs() <= 0.21).all()


def test_camera_sees_means_of_brightness():
    frames = torch.rand(2, 3, FRAME, FRAME, dtype=torch.float64)
    red, green, blue = frames.unbind(1)
    wanted = (0.299 * red + 0.587 * green + 0.114 * blue).unflatten(1, (16, 4)).unflatten(3, (16, 4)).mean((2, 4))
    torch.testing.assert_close(camera_frames(frames)[:, 0], wanted)
    assert camera_frames(frames[:, None]).shape == (2, 1, 1, 16, 16)


@cache
def real_photos():
    pytest.importorskip("PIL")
    return read_photos(ARCHIVE)


@pytest.mark.realdata
@needs_archive
def test_real_people():
    photos = real_photos()
    digits = photos.digits_N.tolist()
    assert len(photos) == 2062
    assert len(runs(digits)) == 220
    sizes = photos.people_N.bincount()
    assert len(sizes) == 209
    assert (sizes == 10).sum() == 197  # nearly everybody shows each digit once
    assert sizes.max() <= 11


@pytest.mark.realdata
@needs_archive
def test_real_split():
    photos = real_photos()
    parts = split_photos(photos)
    everybody = [set(part.people_N.tolist()) for part in parts.values()]
    assert sum(map(len, everybody)) == len(set.union(*everybody)) == 209
    assert all(part.digits_N.bincount().min() >= 15 for part in parts.values())


@pytest.mark.realdata
@needs_archive
def test_real_flow_explains_most_of_the_change():
    photos = real_photos()
    clips = ClipMaker(photos).make(range(0, 2000, 50), torch.tensor([[0, 4]]).expand(40, -1))
    explained, still = error(warped(clips), clips), error(clips.frames_BTCHW[:, 1:], clips)
    assert explained.mean() < 0.35 * still.mean()
