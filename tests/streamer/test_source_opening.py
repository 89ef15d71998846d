"""What the command line can name as a source."""

import os
import re
import sys
from pathlib import Path

import PIL.Image
import pytest
from made_videos import picture, write_video

from whet.errors import MissingExtra, OptionError, TargetError
from whet.streamer.sources import KINDS, open_source
from whet.streamer.sources.folder import ImageFolder
from whet.streamer.sources.synthetic import SyntheticClip
from whet.streamer.sources.video import VideoFile


def test_synthetic_clips() -> None:
    clip = open_source("synthetic")
    assert isinstance(clip, SyntheticClip)
    assert sum(1 for _ in clip) == 600
    frames = list(open_source("synthetic:7", size=(10, 20), rate=50, seed=2))
    assert len(frames) == 7
    assert frames[1].time_s == 0.02
    assert frames[0].image.shape == (10, 20, 3)
    assert (frames[3].image == list(SyntheticClip(7, size=(10, 20), seed=2))[3].image).all()


def test_videos_and_folders(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [picture(0)])
    PIL.Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    with open_source(str(tmp_path / "a.mp4"), size=(20, 10), fit="stretch") as video:
        assert isinstance(video, VideoFile)
        assert next(video).image.shape == (20, 10, 3)
    with open_source(str(tmp_path), rate=5, size=(4, 4)) as folder:
        assert isinstance(folder, ImageFolder)
        assert folder.rate == 5
        assert next(folder).image.shape == (4, 4, 3)
    with pytest.raises(OptionError, match="a video file has its own times and takes no rate"):
        open_source(str(tmp_path / "a.mp4"), rate=5)


def test_cameras() -> None:
    for text, name in (("camera:977", "camera 977"), ("camera:/dev/none", "camera /dev/none")):
        with pytest.raises(TargetError, match=f"{name} cannot be opened"):
            open_source(text)
    with pytest.raises(TargetError, match="camera /dev/null cannot be opened"):
        open_source("/dev/null")


@pytest.mark.parametrize("text", ["nothing", "no/such.mp4", "rtsp://host/stream", "\0", "Camera", "x" * 5000])
def test_unknown_sources_say_what_there_is(text: str) -> None:
    with pytest.raises(TargetError) as caught:
        open_source(text)
    message = str(caught.value)
    assert message == f"there is no source {text!r}; name {KINDS}"
    assert "\n" not in message


def test_an_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(OptionError, match="a source needs a name"):
        open_source("")


@pytest.mark.parametrize("text", ["synthetic:", "synthetic:-1", "synthetic:1.5", "synthetic:²", "camera:", "camera:x"])
def test_details_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"got {text!r}")):
        open_source(text)


def test_a_clip_without_frames() -> None:
    with pytest.raises(OptionError, match="at least one frame"):
        open_source("synthetic:0")


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="is no file that can be read as a video"):
        open_source(str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("module", "package", "text", "words"),
    [
        ("video", "av", "a.mp4", "reading a video needs av"),
        ("folder", "PIL", ".", "reading images needs pillow"),
        ("camera", "cv2", "camera", "reading a camera needs opencv-python-headless"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, package: str, text: str, words: str
) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, f"whet.streamer.sources.{module}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{words}, which is not installed: pip install 'torch-whet\[stream\]'"):
        open_source(text)
