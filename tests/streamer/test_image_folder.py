"""Folders of images: their order, their kinds, and images that cannot be read."""

import random
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError, TargetError
from whet.streamer.sources.folder import ImageFolder, natural_key, read_image


def save(path: Path, value: int | tuple[int, int, int] = 0, size: tuple[int, int] = (8, 6)) -> None:
    PIL.Image.new("RGB", size, value if isinstance(value, tuple) else (value,) * 3).save(path)


def test_names_are_in_natural_order() -> None:
    names = ["img1.png", "img2.png", "IMG3.png", "img10.png", "img010b.png", "imh1.png", "take2_9.png", "take2_10.png"]
    mixed = names.copy()
    random.Random(0).shuffle(mixed)
    assert sorted(mixed, key=natural_key) == names


@given(st.text(st.characters(exclude_categories=["Nd", "Cs"]), max_size=5), st.lists(st.integers(0, 10**30)))
def test_numbers_in_names_are_compared_as_numbers(prefix: str, numbers: list[int]) -> None:
    names = [f"{prefix}{number}.png" for number in numbers]
    expected = [f"{prefix}{number}.png" for number in sorted(numbers)]
    assert sorted(names, key=natural_key) == expected


@given(st.lists(st.text()))
def test_any_names_have_one_order(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)


def test_frames_of_a_folder(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        save(tmp_path / f"img{number}.png", number)
    save(tmp_path / "img3.BMP", 3)
    save(tmp_path / "img11.webp", (90, 90, 90))
    save(tmp_path / ".hidden.png", 99)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "img0.png").mkdir()
    with ImageFolder(tmp_path, rate=10) as source:
        frames = list(source)
        assert source.rate == 10
        assert not source.is_live
        assert not source.problems
    assert [frame.image[0, 0, 0] for frame in frames[:4]] == [1, 2, 3, 10]
    assert abs(int(frames[4].image[0, 0, 0]) - 90) <= 3
    assert [frame.time_s for frame in frames] == [0, 0.1, 0.2, 0.3, 0.4]
    assert {frame.image.shape for frame in frames} == {(6, 8, 3)}
    assert all(frame.image.flags.writeable for frame in frames)  # torch warns of others
    assert [frame.time_s for frame in ImageFolder(tmp_path)][:2] == [0, 1 / 25]


def test_sizes_that_differ_become_one(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 50, (100, 40))
    save(tmp_path / "b.png", 60, (30, 90))
    frames = list(ImageFolder(tmp_path, size=(16, 12)))
    assert [frame.image.shape for frame in frames] == [(16, 12, 3)] * 2
    assert [frame.image.min() for frame in frames] == [frame.image.max() for frame in frames] == [50, 60]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    upright = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    stored = {  # what a camera stores when it is held so, by the EXIF standard's table of rows and columns
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }[orientation]
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    PIL.Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "e.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "e.png")[..., 0], upright)


def test_kinds_of_pixels(tmp_path: Path) -> None:
    wide = np.array([[0, 257 * 7, 257 * 7 + 128, 257 * 7 + 129, 65_535]], np.uint16)
    PIL.Image.fromarray(wide).save(tmp_path / "wide.png")
    assert read_image(tmp_path / "wide.png")[0].tolist() == [[v] * 3 for v in (0, 7, 7, 8, 255)]
    grey = np.array([[0, 100, 255]], np.uint8)
    PIL.Image.fromarray(grey).save(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png")[0].tolist() == [[v] * 3 for v in (0, 100, 255)]
    clear = np.array([[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 51]]], np.uint8)
    PIL.Image.fromarray(clear).save(tmp_path / "clear.png")
    found = read_image(tmp_path / "clear.png")[0].astype(int)
    assert np.abs(found - [[200, 100, 50], [0, 0, 0], [40, 20, 10]]).max() <= 1  # over black
    indexed = PIL.Image.new("P", (1, 1), 1)
    indexed.putpalette([0, 0, 0, 10, 20, 30])
    indexed.save(tmp_path / "indexed.png")
    assert read_image(tmp_path / "indexed.png")[0].tolist() == [[10, 20, 30]]
    PIL.Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "print.jpg")
    assert np.abs(read_image(tmp_path / "print.jpg").astype(int) - [255, 0, 0]).max() <= 3


def test_a_broken_image_is_skipped_and_leaves_no_gap(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.png", number, (64, 64))
    data = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(data[: len(data) // 2])
    source = ImageFolder(tmp_path, rate=5)
    assert [(frame.index, frame.time_s, int(frame.image[0, 0, 0])) for frame in source] == [(0, 0, 0), (1, 0.2, 2)]
    assert source.problems == {"images that cannot be read": 1}


def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.png", 5, (10, 10))
    save(tmp_path / "b.png", 5, (100, 100))
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    source = ImageFolder(tmp_path)
    assert [frame.image.shape for frame in source] == [(10, 10, 3)]
    assert source.problems == {"images that cannot be read": 1}


def test_folders_that_hold_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"holds no image; put \.png"):
        ImageFolder(tmp_path)
    with pytest.raises(TargetError, match="cannot be read as a folder: No such file"):
        ImageFolder(tmp_path / "missing")
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(TargetError, match=r"none of the 1 images of .* can be read \(x.png: cannot identify"):
        next(ImageFolder(tmp_path))
    with pytest.raises(OptionError, match="frames/s"):
        ImageFolder(tmp_path, rate=0)
