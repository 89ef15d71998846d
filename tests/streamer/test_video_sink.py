"""Videos that whet writes: what they hold when they are read again, and what is left where something goes wrong."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_videos import picture, psnr

from whet.errors import MissingExtra, OptionError, OutputError
from whet.streamer.frames import Frame
from whet.streamer.sinks import NullSink, open_sink
from whet.streamer.sinks.video import VideoSink
from whet.streamer.sources.video import VideoFile

TICK = 1 / 90_000


def read(path: Path) -> list[Frame]:
    with VideoFile(path) as source:
        frames = list(source)
        assert not source.problems
        return frames


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("name", "codec", "written", "tick", "least_db"),
    [
        ("a.mp4", None, "h264", TICK, 38),
        ("a.mkv", None, "h264", 0.001, 38),
        ("a.webm", None, "vp9", 0.001, 38),
        ("a.mp4", "mpeg4", "mpeg4", 1 / 60_000, 36),
        ("a.MKV", "mpeg4", "mpeg4", 0.001, 36),
    ],
)
@pytest.mark.parametrize("size", [(64, 96), (45, 67)])
def test_what_is_written_is_read_again(
    tmp_path: Path, name: str, codec: str | None, written: str, tick: float, least_db: float, size: tuple[int, int]
) -> None:
    pictures = [picture(index, size) for index in range(40)]
    moments = np.cumsum(np.random.default_rng(0).uniform(0.002, 0.1, 40))
    with VideoSink(tmp_path / name, codec=codec) as sink:
        for image, moment in zip(pictures, moments, strict=True):
            sink.write(image, float(moment))
        assert names(tmp_path)[0].startswith(f".{name}.")  # no reader sees a part of it under its name
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == [name]
    assert sink.num_written == 40
    with av.open(str(tmp_path / name)) as container:
        assert container.streams.video[0].codec_context.name == written
    frames = read(tmp_path / name)
    assert len(frames) == 40
    for frame, image, moment in zip(frames, pictures, moments - moments[0], strict=True):
        assert frame.image.shape == (size[0] + size[0] % 2, size[1] + size[1] % 2, 3)
        assert psnr(frame.image[: size[0], : size[1]], image) > least_db
        assert abs(frame.time_s - moment) <= tick  # both ends are rounded to half of a tick


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
def test_opencv_plays_what_is_written(tmp_path: Path, name: str) -> None:
    """OpenCV brings its own build of FFmpeg."""
    with VideoSink(tmp_path / name, rate=25) as sink:
        for index in range(30):
            sink.write(picture(index), index / 25)
    capture = cv2.VideoCapture(str(tmp_path / name))
    for index in range(30):
        is_there, image = capture.read()
        assert is_there
        assert capture.get(cv2.CAP_PROP_POS_MSEC) == pytest.approx(40 * index)
        assert psnr(image[..., ::-1], picture(index)) > 30
    assert not capture.read()[0]
    capture.release()


def test_an_odd_picture_repeats_its_last_row_and_column(tmp_path: Path) -> None:
    with VideoSink(tmp_path / "o.mp4") as sink:
        sink.write(picture(0, (33, 47)), 0)
    (frame,) = read(tmp_path / "o.mp4")
    padded = np.pad(picture(0, (33, 47)), ((0, 1), (0, 1), (0, 0)), mode="edge")
    assert psnr(frame.image[-1:], padded[-1:]) > 32
    assert psnr(frame.image[:, -1:], padded[:, -1:]) > 32


def test_colours_are_bt709_and_labelled(tmp_path: Path) -> None:
    """The planes are read as they are stored, and converted in float64 by the equations of ITU-R BT.709."""
    colours = np.array([[250, 20, 30], [20, 240, 40], [10, 30, 230], [128, 128, 128], [255, 255, 255], [0, 0, 0]])
    image = np.repeat(np.repeat(colours[None].astype(np.uint8), 32, axis=0), 16, axis=1)
    with VideoSink(tmp_path / "c.mp4") as sink:
        sink.write(image, 0)
    with av.open(str(tmp_path / "c.mp4")) as container:
        frame = next(container.decode(video=0))
        context = container.streams.video[0].codec_context
        assert (context.colorspace, context.color_range, context.color_primaries, context.color_trc) == (1, 1, 1, 1)
        planes = [np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in frame.planes]
    for column, colour in enumerate(colours.astype(np.float64)):
        luma = colour @ [0.2126, 0.7152, 0.0722]
        expected = [16 + luma * 219 / 255]
        expected += [128 + (colour[2] - luma) / 1.8556 * 224 / 255, 128 + (colour[0] - luma) / 1.5748 * 224 / 255]
        found = [planes[0][16, column * 16 + 8], planes[1][8, column * 8 + 4], planes[2][8, column * 8 + 4]]
        assert np.abs(np.array(found, np.float64) - expected).max() < 3


@given(st.lists(st.floats(0, 3600, allow_nan=False), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_times_are_kept_and_strictly_increase(moments: list[float]) -> None:
    moments.sort()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.mp4"
        with VideoSink(path) as sink:
            for moment in moments:
                sink.write(np.zeros((16, 16, 3), np.uint8), moment)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.time_base * 90_000 == 1
            found = sorted(packet.pts for packet in container.demux(stream) if packet.size)
    expected: list[int] = []
    for moment in moments:
        expected.append(max(round(moment * 90_000), expected[-1] + 1 if expected else 0))
    shifts = {pts - due for pts, due in zip(found, expected, strict=True)}
    assert max(shifts) - min(shifts) <= 1  # floats at exactly half of a unit may be rounded either way


def test_times_that_do_not_increase_are_moved_on(tmp_path: Path) -> None:
    with VideoSink(tmp_path / "t.mp4") as sink:
        for moment in (0, 1, 1, 0.5, 2):
            sink.write(picture(0), moment)
    times = [frame.time_s for frame in read(tmp_path / "t.mp4")]
    assert times == pytest.approx([0, 1, 1 + TICK, 1 + 2 * TICK, 2], abs=TICK / 10)


def test_later_frames_take_the_size_of_the_first(tmp_path: Path) -> None:
    with VideoSink(tmp_path / "s.mp4") as sink:
        for index, size in enumerate([(48, 64), (96, 128), (31, 17)]):
            sink.write(np.full((*size, 3), 60 * (index + 1), np.uint8), index)
    frames = read(tmp_path / "s.mp4")
    assert [frame.image.shape for frame in frames] == [(48, 64, 3)] * 3
    assert [abs(int(frame.image.mean()) - 60 * (frame.index + 1)) <= 2 for frame in frames] == [True] * 3


def test_after_ctrl_c_the_file_plays(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), VideoSink(tmp_path / "i.mp4") as sink:
        for index in range(100):
            sink.write(picture(index), index / 30)
            if index == 20:
                raise KeyboardInterrupt
    assert names(tmp_path) == ["i.mp4"]
    assert len(read(tmp_path / "i.mp4")) == 21


def test_ctrl_c_while_the_file_is_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: VideoSink, size: tuple[int, int]) -> None:
        self._partial.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(VideoSink, "_begin", interrupt)
    with pytest.raises(KeyboardInterrupt), VideoSink(tmp_path / "i.mp4") as sink:
        sink.write(picture(0), 0)
    assert names(tmp_path) == []


def test_ctrl_c_while_the_file_is_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    sink = VideoSink(tmp_path / "i.mp4")
    sink.write(picture(0), 0)
    with pytest.raises(KeyboardInterrupt):
        sink.close()
    assert names(tmp_path) == []


def test_without_a_frame_there_is_no_file(tmp_path: Path) -> None:
    with VideoSink(tmp_path / "n.mp4") as sink:
        pass
    sink.close()
    assert names(tmp_path) == []
    with pytest.raises(ValueError, match="is closed and takes no more frames"):
        sink.write(picture(0), 0)


@pytest.mark.parametrize("image", [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)])
def test_pictures_of_another_kind_are_refused(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a frame is uint8 RGB"):
        NullSink().write(image, 0)


def test_an_existing_file_is_kept_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "e.mp4"
    path.write_text("mine")
    with pytest.raises(OutputError, match="exists already; name another file, or allow it with --overwrite"):
        VideoSink(path)
    with VideoSink(path, overwrite=True) as sink:
        sink.write(picture(0), 0)
        assert path.read_text() == "mine"
    assert len(read(path)) == 1


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    sink = VideoSink(tmp_path / "m.mp4")
    sink.write(picture(0), 0)
    (tmp_path / "m.mp4").write_text("theirs")
    with pytest.raises(OutputError, match="exists already"):
        sink.close()
    assert names(tmp_path) == ["m.mp4"]
    assert (tmp_path / "m.mp4").read_text() == "theirs"


FILL = """
import resource, sys
import numpy as np
from whet.errors import OutputError
from whet.streamer.sinks import open_sink
sink = open_sink(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
random = np.random.default_rng(0)
try:
    with sink:
        for index in range(int(sys.argv[3])):
            sink.write(random.integers(0, 256, (64, 64, 3), dtype=np.uint8), index / 30)
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["f.mp4", "f.mkv", "f.webm"])
@pytest.mark.parametrize(("limit", "num_frames"), [(100_000, 400), (1000, 3)])  # in the middle, and while it is closed
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path, name: str, limit: int, num_frames: int) -> None:
    """A limit on the size of files stands in for a full disk: writing fails with an error of the system."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", FILL, str(tmp_path / name), str(limit), str(num_frames)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot write {tmp_path / name}: File too large; free some space, or name another place\n"
    assert names(tmp_path) == []


def test_what_cannot_be_written_is_noticed_before_the_first_frame(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dir.mp4").mkdir()
    for text, kind, words in [
        (f"{tmp_path}/a.avi", OptionError, "name a .mp4, .mkv or .webm file"),
        (f"{tmp_path}/plain", OptionError, "there is no output .*; name a .mp4, .mkv or .webm file, a folder"),
        (f"{tmp_path}/no/a.mp4", OutputError, "there is no directory"),
        (f"{tmp_path}/file/a.mp4", OutputError, "there is no directory"),
        ("/proc/a.mp4", OutputError, "cannot be written"),
    ]:
        with pytest.raises(kind, match=words) as caught:
            open_sink(text)
        assert "\n" not in str(caught.value)
    with pytest.raises(OutputError, match="is a directory; name a file"):
        VideoSink(tmp_path / "dir.mp4")
    with pytest.raises(OptionError, match="is encoded by libx264 or mpeg4; got 'libvpx-vp9'"):
        VideoSink(tmp_path / "a.mp4", codec="libvpx-vp9")
    with pytest.raises(OptionError, match="frames/s"):
        open_sink(f"{tmp_path}/a.mp4", rate=-1)
    assert names(tmp_path) == ["dir.mp4", "file"]


def test_mpeg4_is_written_where_h264_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = av.codec.Codec

    def without_x264(name: str, mode: str = "r") -> av.codec.Codec:
        return whole("no-such-codec" if name == "libx264" else name, mode)

    monkeypatch.setattr(av.codec, "Codec", without_x264)
    with VideoSink(tmp_path / "a.mp4") as sink:
        sink.write(picture(0), 0)
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"
    with pytest.raises(OptionError, match="FFmpeg has no encoder libx264 here; choose another suffix"):
        VideoSink(tmp_path / "b.mp4", codec="libx264")


@pytest.mark.parametrize("name", ["t.mp4", "t.mkv", "t.webm"])
def test_a_picture_of_one_pixel(tmp_path: Path, name: str) -> None:
    with VideoSink(tmp_path / name) as sink:
        sink.write(np.full((1, 1, 3), 100, np.uint8), 0)
    (frame,) = read(tmp_path / name)
    assert frame.image.shape == (2, 2, 3)
    assert np.abs(frame.image.astype(int) - 100).max() <= 4


@pytest.mark.parametrize("time_s", [float("nan"), float("inf")])
def test_a_time_that_is_no_number_is_refused_and_leaves_nothing(tmp_path: Path, time_s: float) -> None:
    sink = VideoSink(tmp_path / "t.mp4")
    sink.write(picture(0), 0)
    with pytest.raises(OutputError, match="cannot write"):
        sink.write(picture(1), time_s)
    assert names(tmp_path) == []


def test_null_counts() -> None:
    with open_sink("null") as sink:
        for index in range(3):
            sink.write(picture(index), index)
    assert sink.num_written == 3
    assert not os.path.lexists("null")


@pytest.mark.parametrize(("module", "package", "text"), [("video", "av", "a.mp4"), ("folder", "PIL", "./")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, package: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, f"whet.streamer.sinks.{module}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingExtra, match=r"needs (av|pillow), which is not installed: pip install 'torch-whet\[stream\]'"
    ):
        open_sink(text)
