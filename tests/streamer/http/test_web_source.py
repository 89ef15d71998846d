"""Frames that a browser sends: the newest is the next, and what cannot be used is counted."""

import io
import struct
import threading

import numpy as np
import PIL.Image
import pytest
from page_servers import grey_jpeg

from whet.streamer.http import web_source
from whet.streamer.http.header import Header
from whet.streamer.http.web_source import WebSource


@pytest.fixture
def refused():
    return []


@pytest.fixture
def source(refused):
    with WebSource((16, 24), lambda sequence, why: refused.append((sequence, why))) as source:
        yield source


def offer(source, sequence, jpeg, captured_ms=0.0):
    source.offer(Header("frame", sequence, captured_ms), memoryview(jpeg))


def test_the_newest_replaces_one_that_waits(source, refused):
    for sequence, level in ((7, 10), (8, 20), (9, 250)):
        offer(source, sequence, grey_jpeg(level), 100.0 * sequence)
    frame = next(source)
    assert frame.image.shape == (16, 24, 3) and abs(int(frame.image.mean()) - 250) <= 1
    assert [sequence for sequence, _ in refused] == [7, 8]
    assert source.header_of(frame.index) == Header("frame", 9, 900.0)
    assert source.problems["frames that a newer one replaced"] == 2
    assert source.is_live and frame.index == 0 and frame.time_s == 0


def test_times_are_those_of_the_browser_and_never_decrease(source):
    times = []
    for sequence, captured_ms in enumerate((5000.0, 5040.0, 4000.0, 5100.0)):
        offer(source, sequence, grey_jpeg(0), captured_ms)
        times.append(next(source).time_s)
    assert times == pytest.approx([0, 0.04, 0.04, 0.1])


def test_frames_that_cannot_be_decoded():
    good, png, refused = grey_jpeg(90), io.BytesIO(), []
    PIL.Image.new("RGB", (24, 16)).save(png, "PNG")

    def refuse(sequence, why):
        refused.append((sequence, why))
        offer(source, 100 + sequence, good)

    source = WebSource((16, 24), refuse)
    for sequence, jpeg in enumerate([b"", b"no picture", good[: len(good) // 2], png.getvalue()]):
        offer(source, sequence, jpeg)
        frame = next(source)  # of the good one that came after it
        assert source.header_of(frame.index).sequence == 100 + sequence and frame.index == sequence
    assert source.problems == {"frames that cannot be decoded": 4}
    assert [sequence for sequence, _ in refused] == [0, 1, 2, 3]
    assert all("damaged" in why for _, why in refused)


def test_a_frame_of_too_many_bytes(source, refused, monkeypatch):
    jpeg = grey_jpeg(0)
    monkeypatch.setattr(web_source, "MAX_BYTES", len(jpeg) - 1)
    offer(source, 50, jpeg)
    assert refused == [(50, f"a frame has at most {len(jpeg) - 1:,} bytes")]
    assert source.problems == {"frames that are too large": 1}


def test_a_decompression_bomb_is_refused_by_its_head(source, refused, monkeypatch):
    """A JPEG may say that it has 65,500 x 65,500 pixels in a few bytes. No pixel of it is decoded."""
    jpeg = bytearray(grey_jpeg(0))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65_500, 65_500)
    decoded = []
    monkeypatch.setattr(web_source.JpegImageFile, "load", lambda self: decoded.append(self.size))
    offer(source, 3, bytes(jpeg))
    threading.Timer(0.1, source.close).start()
    assert list(source) == []
    assert decoded == [] and refused[0][0] == 3 and "65,500 x 65,500" in refused[0][1]


def test_another_size_is_cropped_and_scaled(source):
    wide = np.zeros((32, 144, 3), np.uint8)
    wide[:, 48:96] = 200  # the middle third, which is what a crop to 16 x 24 keeps
    file = io.BytesIO()
    PIL.Image.fromarray(wide).save(file, "JPEG", quality=95)
    offer(source, 0, file.getvalue())
    image = next(source).image
    assert image.shape == (16, 24, 3) and image[:, 2:-2].min() > 190
    assert source.problems["frames of another size, which were scaled"] == 1


def test_closing_wakes_the_reader(source):
    threading.Timer(0.1, source.close).start()
    assert list(source) == []
    offer(source, 1, grey_jpeg(0))
    assert list(source) == []


def test_headers_are_kept_for_a_while(source):
    kept = web_source._MOST_HANDED_OUT
    for sequence in range(kept + 3):
        offer(source, sequence, grey_jpeg(0))
        next(source)
    assert source.header_of(2) is None and source.header_of(3).sequence == 3
    assert source.header_of(kept + 2).sequence == kept + 2
