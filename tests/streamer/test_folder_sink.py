"""Frames as images in a folder."""

from pathlib import Path

import numpy as np
import pytest
from made_videos import picture, psnr

from whet.errors import OptionError, OutputError
from whet.streamer.sinks import open_sink
from whet.streamer.sinks.folder import ImageFolderSink
from whet.streamer.sources import open_source


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_png_keeps_every_pixel(tmp_path: Path) -> None:
    with open_sink(f"{tmp_path}/new/frames/") as sink:
        for index in range(12):
            sink.write(picture(index, (31, 45)), index)
    assert names(tmp_path / "new/frames") == [f"{index:06d}.png" for index in range(12)]
    frames = list(open_source(f"{tmp_path}/new/frames"))
    assert all(np.array_equal(frame.image, picture(frame.index, (31, 45))) for frame in frames)
    assert len(frames) == sink.num_written == 12


def test_jpeg_keeps_almost_everything(tmp_path: Path) -> None:
    with open_sink(str(tmp_path), images="jpg") as sink:
        sink.write(picture(0), 0)
    assert names(tmp_path) == ["000000.jpg"]
    assert psnr(next(open_source(str(tmp_path))).image, picture(0)) > 38


def test_a_folder_that_is_not_empty_is_kept_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    for name in ("000000.png", "000007.jpg", "1234567.png", "mine.png", "00001.png", "notes.txt"):
        (tmp_path / name).write_text("old")
    with pytest.raises(OutputError, match="is not empty; name another folder, or allow it with --overwrite"):
        open_sink(str(tmp_path))
    sink = open_sink(str(tmp_path), overwrite=True)
    assert len(names(tmp_path)) == 6  # nothing is deleted before there is a frame
    sink.write(picture(0), 0)
    sink.close()
    assert names(tmp_path) == ["000000.png", "00001.png", "mine.png", "notes.txt"]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        ImageFolderSink(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot make the directory"):
        open_sink(f"{tmp_path}/file/frames/")
    with pytest.raises(OutputError, match="cannot write into the directory /proc"):
        open_sink("/proc/", overwrite=True)
    with pytest.raises(OptionError, match="png or jpg images; got 'gif'"):
        open_sink(f"{tmp_path}/frames/", images="gif")  # type: ignore[arg-type]
    assert names(tmp_path) == ["file"]


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    sink = open_sink(f"{tmp_path}/gone/")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OutputError, match="cannot write"):
        sink.write(picture(0), 0)
    assert sink.num_written == 0
