"""Real videos: frames and times against the file's own tables, colours against the equations in float64."""

import struct
from pathlib import Path

import av
import numpy as np
import pytest
from made_videos import psnr

from whet.streamer.sinks.video import VideoSink
from whet.streamer.sources.video import VideoFile

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "video"
NASA, FULL_RANGE = DATA / "nasa_13013.mp4", DATA / "bt709_full_range.mp4"

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/video is not here"),
]


def boxes(data: bytes, kind: bytes) -> list[bytes]:
    """Return the contents of all boxes of a kind in an MP4 file's index, in order (ISO/IEC 14496-12)."""
    found = []

    def search(start: int, end: int) -> None:
        while start + 8 <= end:
            size, name = struct.unpack_from(">I4s", data, start)
            if name == kind:
                found.append(data[start + 8 : start + size])
            elif name in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
                search(start + 8, start + size)
            start += max(size, 8)

    search(0, len(data))
    return found


def test_the_best_stream_is_read_whole_and_on_time() -> None:
    """The file's tables say: stream 3 has 390 frames of 1001 units of 1/30000 s each, and 480 x 270 pixels."""
    data = NASA.read_bytes()
    tables = [struct.unpack_from(">III", box, 4) for box in boxes(data, b"stts")]
    assert tables[3] == (1, 390, 1001)
    assert struct.unpack_from(">I", boxes(data, b"mdhd")[3], 12) == (30_000,)
    with VideoFile(NASA) as source:
        assert source.rate == pytest.approx(30_000 / 1001)
        frames = [(frame.image.shape, frame.index, frame.time_s) for frame in source]
        assert not source.problems
    assert frames == [((270, 480, 3), index, index * 1001 / 30_000) for index in range(390)]


def converted(frame: av.VideoFrame) -> tuple[np.ndarray, np.ndarray]:
    """Convert a picture in YUV 4:2:0 by the equations of ITU-R BT.709 in the full range, in float64.

    Returns:
        The picture, [H, W, 3], and where its chroma is the same all around, so that interpolating it changes nothing.
    """
    planes = [
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width].astype(np.float64)
        for plane in frame.planes
    ]
    luma, blue, red = planes[0], planes[1] - 128, planes[2] - 128
    is_flat = np.ones(blue.shape, bool)
    for chroma in (blue, red):
        edged = np.pad(chroma, 1, mode="edge")
        for row in range(3):
            for column in range(3):
                is_flat &= edged[row : row + chroma.shape[0], column : column + chroma.shape[1]] == chroma
    blue, red, is_flat = (part.repeat(2, axis=0).repeat(2, axis=1) for part in (blue, red, is_flat))
    red_out, blue_out = luma + 1.5748 * red, luma + 1.8556 * blue
    green_out = (luma - 0.2126 * red_out - 0.0722 * blue_out) / 0.7152
    return np.clip(np.stack([red_out, green_out, blue_out], -1), 0, 255), is_flat


def test_full_range_bt709_is_converted_right() -> None:
    with av.open(str(FULL_RANGE)) as container:
        expected = {index: converted(frame) for index, frame in enumerate(container.decode(video=0)) if index % 10 == 0}
    with VideoFile(FULL_RANGE) as source:
        frames = list(source)
    assert [frame.time_s for frame in frames] == [index / 30 for index in range(30)]
    for index, (picture, is_flat) in expected.items():
        error = frames[index].image - picture
        assert is_flat.mean() > 0.5
        assert np.abs(error[is_flat]).max() < 1.01
        assert np.abs(error.mean(axis=(0, 1))).max() < 0.3
    with VideoFile(FULL_RANGE, size=(180, 320)) as source:
        small = list(source)
    for index, (picture, _) in expected.items():
        averaged = picture.reshape(180, 4, 320, 4, 3).mean(axis=(1, 3))
        assert np.abs((small[index].image - averaged).mean(axis=(0, 1))).max() < 0.5
        assert psnr(small[index].image, averaged.round().astype(np.uint8)) > 32


def test_a_real_video_survives_being_written(tmp_path: Path) -> None:
    with VideoFile(NASA) as source, VideoSink(tmp_path / "copy.mp4", rate=source.rate) as sink:
        frames = [next(source) for _ in range(60)]
        for frame in frames:
            sink.write(frame.image, frame.time_s)
    with VideoFile(tmp_path / "copy.mp4") as copied:
        again = list(copied)
    assert len(again) == 60
    for before, after in zip(frames, again, strict=True):
        assert abs(before.time_s - after.time_s) <= 1 / 90_000
        assert psnr(before.image, after.image) > 32
