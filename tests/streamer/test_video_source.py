"""Video files, made by PyAV: times, colours, turns, and what is wrong with files from outside."""

import gc
import re
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest
from made_videos import damage, picture, psnr, quadrants, write_planes, write_video

from whet.errors import TargetError
from whet.streamer.frames import Frame
from whet.streamer.sources import first_frames
from whet.streamer.sources.video import VideoFile

INTRA = {"g": "1", "bf": "0"}  # every packet is a picture of its own


def read(path: Path, **options: object) -> list[Frame]:
    with VideoFile(path, **options) as source:  # type: ignore[arg-type]
        return list(source)


def is_open(path: Path) -> bool:
    return str(path) in [file.path for file in psutil.Process().open_files()]


def test_frames_come_with_their_own_times(tmp_path: Path) -> None:
    pts = [9000, 9001, 12_000, 102_000, 102_500, 180_000]
    for name in ("a.mp4", "a.ts"):
        write_video(tmp_path / name, [picture(index) for index in range(6)], pts=pts, with_sound=True)
        frames = read(tmp_path / name)
        assert [frame.time_s for frame in frames] == [(moment - 9000) / 90_000 for moment in pts]
        assert [frame.index for frame in frames] == list(range(6))
        for frame in frames:
            assert frame.image.dtype == np.uint8
            assert frame.image.shape == (48, 64, 3)
            assert frame.image.flags.c_contiguous
            assert frame.image.flags.writeable  # torch warns of others
            assert psnr(frame.image, picture(frame.index)) > 32


def test_frames_are_in_order_of_presentation(tmp_path: Path) -> None:
    write_video(tmp_path / "b.mp4", [picture(index) for index in range(40)], options={"bf": "3", "b-adapt": "0"})
    with VideoFile(tmp_path / "b.mp4") as source:
        frames = list(source)
        assert source.rate == 25
        assert not source.is_live
        assert not source.problems
    assert [frame.time_s for frame in frames] == [index / 25 for index in range(40)]
    assert all(psnr(frame.image, picture(frame.index)) > 32 for frame in frames)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_the_display_matrix_is_applied(tmp_path: Path, degrees: int, is_mirrored: bool) -> None:
    write_video(tmp_path / "r.mp4", [quadrants()], rotation=(degrees, is_mirrored))
    expected = np.rot90(quadrants(), degrees // 90)
    if is_mirrored:
        expected = expected[:, ::-1]
    (whole,) = read(tmp_path / "r.mp4")
    assert whole.image.shape == expected.shape
    assert psnr(whole.image, expected) > 32
    (small,) = read(tmp_path / "r.mp4", size=(32, 20))
    reduced = np.array([expected[y, x] for y in (2, -3) for x in (2, -3)], int)
    assert small.image.shape == (32, 20, 3)
    corners = np.array([small.image[y, x] for y in (2, -3) for x in (2, -3)], int)
    assert np.abs(corners - reduced).max() < 12


def test_odd_sizes_are_kept(tmp_path: Path) -> None:
    write_video(tmp_path / "o.mkv", [picture(0, (45, 67))], codec="ffv1")
    (frame,) = read(tmp_path / "o.mkv")
    assert frame.image.shape == (45, 67, 3)
    assert psnr(frame.image, picture(0, (45, 67))) > 40


def test_sizes_fits_and_pixels_that_are_not_square(tmp_path: Path) -> None:
    image = np.zeros((64, 128, 3), np.uint8)
    image[:, 32:96] = 200  # the middle half
    write_video(tmp_path / "w.mp4", [image])
    (cropped,) = read(tmp_path / "w.mp4", size=(32, 32))
    assert cropped.image.shape == (32, 32, 3)
    assert cropped.image[:, 2:-2].min() > 180
    (stretched,) = read(tmp_path / "w.mp4", size=(32, 32), fit="stretch")
    assert stretched.image[:, :6].max() < 20
    assert stretched.image[:, 10:22].min() > 180
    write_video(tmp_path / "s.mp4", [image], pixel_aspect=Fraction(1, 2))  # shown as 64 x 64
    (squeezed,) = read(tmp_path / "s.mp4", size=(32, 32))
    assert np.abs(squeezed.image.astype(int) - stretched.image).max() < 12
    write_video(tmp_path / "t.mp4", [image], pixel_aspect=Fraction(1, 2), rotation=(90, False))
    (turned,) = read(tmp_path / "t.mp4", size=(32, 32))
    assert np.abs(turned.image.astype(int) - np.rot90(stretched.image)).max() < 12


@pytest.mark.parametrize(
    ("matrix", "is_full", "planes", "colour"),
    [
        (1, False, (63, 102, 240), (255, 0, 0)),  # red in BT.709
        (6, False, (81, 90, 240), (255, 0, 0)),  # red in BT.601
        (None, None, (81, 90, 240), (255, 0, 0)),  # without a label, BT.601 in the limited range
        (9, False, (74, 97, 240), (255, 0, 0)),  # red in BT.2020
        (1, True, (128, 128, 128), (128, 128, 128)),
        (1, False, (126, 128, 128), (128, 128, 128)),
        (1, True, (54, 99, 255), (254, 0, 0)),
    ],
)
def test_colours_follow_the_matrix_and_the_range(
    tmp_path: Path, matrix: int | None, is_full: bool | None, planes: tuple[int, int, int], colour: tuple[int, int, int]
) -> None:
    write_planes(tmp_path / "c.mp4", planes, matrix=matrix, is_full=is_full)
    (frame,) = read(tmp_path / "c.mp4")
    assert np.abs(frame.image.astype(int) - colour).max() <= 2


def test_damaged_packets_are_skipped_and_counted(tmp_path: Path) -> None:
    write_video(tmp_path / "d.mp4", [picture(index) for index in range(30)], options=INTRA)
    damage(tmp_path / "d.mp4", {0, 10, 11, 29})
    with VideoFile(tmp_path / "d.mp4") as source:
        frames = list(source)
        assert source.problems == {"packets that cannot be decoded": 4}
    kept = [index for index in range(30) if index not in (0, 10, 11, 29)]
    assert [frame.time_s for frame in frames] == [pytest.approx((index - 1) / 25) for index in kept]
    for frame, index in zip(frames, kept, strict=True):
        assert psnr(frame.image, picture(index)) > 32


def test_what_judges_frames_takes_no_damaged_ones(tmp_path: Path) -> None:
    write_video(tmp_path / "d.mp4", [picture(index) for index in range(30)], options=INTRA)
    damage(tmp_path / "d.mp4", {20})
    assert len(first_frames(VideoFile(tmp_path / "d.mp4"), 10, "a drift test")) == 10
    with pytest.raises(TargetError, match=r"is damaged from frame 20 on .*; a drift test takes whole frames: mend"):
        first_frames(VideoFile(tmp_path / "d.mp4"), 30, "a drift test")


def test_packets_with_missing_parts_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = [random.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(20)]
    write_video(tmp_path / "m.ts", noise, options=INTRA)
    data = (tmp_path / "m.ts").read_bytes()
    middle = len(data) // 188 // 2 * 188  # a transport stream comes in parts of 188 bytes
    (tmp_path / "m.ts").write_bytes(data[:middle] + data[middle + 3 * 188 :])
    with VideoFile(tmp_path / "m.ts") as source:
        assert [frame.time_s for frame in source] == [pytest.approx(index / 25) for index in range(20)]
        assert source.problems == {"packets with missing parts": 1}


def test_a_video_without_a_whole_frame_is_refused(tmp_path: Path) -> None:
    write_video(tmp_path / "d.mp4", [picture(index) for index in range(3)], options=INTRA)
    damage(tmp_path / "d.mp4", {0, 1, 2})
    source = VideoFile(tmp_path / "d.mp4")
    with pytest.raises(TargetError, match=r"no frame of .* can be decoded: 3 packets that cannot be decoded"):
        next(source)
    assert list(source) == []


def test_a_file_that_breaks_off_gives_the_frames_that_it_has(tmp_path: Path) -> None:
    write_video(tmp_path / "t.mkv", [picture(index) for index in range(50)], options=INTRA)
    data = (tmp_path / "t.mkv").read_bytes()
    (tmp_path / "t.mkv").write_bytes(data[: len(data) // 2])
    frames = read(tmp_path / "t.mkv")
    assert 10 < len(frames) < 50
    assert [frame.time_s for frame in frames] == [pytest.approx(index / 25) for index in range(len(frames))]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_at_random_end_in_frames_or_in_one_clear_error(tmp_path: Path, seed: int) -> None:
    path = tmp_path / ("n.mkv" if seed % 2 else "n.ts")
    write_video(path, [picture(index) for index in range(20)], options={"g": "5"})
    random = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for place in random.integers(0, len(data), 30):
        data[place] = random.integers(256)
    path.write_bytes(bytes(data))
    try:
        frames = read(path, size=(16, 16))
    except TargetError as error:
        assert "\n" not in str(error)
    else:
        assert frames
        assert [frame.time_s for frame in frames] == sorted(frame.time_s for frame in frames)
        assert {frame.image.shape for frame in frames} == {(16, 16, 3)}


def test_joined_recordings_change_size_and_go_on_in_time(tmp_path: Path) -> None:
    for name, size in (("a.ts", (48, 64)), ("b.ts", (96, 80))):
        write_video(tmp_path / name, [picture(index, size) for index in range(50)], options={"bf": "0"})
    (tmp_path / "j.ts").write_bytes((tmp_path / "a.ts").read_bytes() + (tmp_path / "b.ts").read_bytes())
    with VideoFile(tmp_path / "j.ts") as source:
        frames = list(source)
        assert source.problems["timestamps that go back"] == 1
    assert [frame.image.shape for frame in frames] == [(48, 64, 3)] * 50 + [(96, 80, 3)] * 50
    assert [frame.time_s for frame in frames] == [pytest.approx(index / 25) for index in range(100)]
    assert {frame.image.shape for frame in read(tmp_path / "j.ts", size=(32, 32))} == {(32, 32, 3)}


def test_the_default_video_stream_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = []
        for size in ((48, 64), (64, 48)):
            stream = container.add_stream("libx264", rate=25)
            stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
            streams.append((stream, size))
        streams[0][0].disposition = 0
        streams[1][0].disposition = av.stream.Disposition.default
        for index in range(5):
            for stream, size in streams:
                frame = av.VideoFrame.from_ndarray(picture(index, size), format="rgb24")
                frame.pts = index
                container.mux(stream.encode(frame))
        for stream, _ in streams:
            container.mux(stream.encode(None))
    assert [frame.image.shape for frame in read(path)] == [(64, 48, 3)] * 5


def test_files_that_are_no_videos(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "noise.mp4").write_bytes(bytes(range(256)) * 50)
    (tmp_path / "text.txt").write_text("A text, and no video.\n" * 50)
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:2,\nhttp://127.0.0.1:9/part.ts\n#EXT-X-ENDLIST\n")
    write_video(tmp_path / "whole.mp4", [picture(index) for index in range(20)])
    data = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) * 3 // 4])  # its index lies at the end
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        sound = container.add_stream("aac", rate=16_000, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 16_000
        container.mux(sound.encode(silence))
        container.mux(sound.encode(None))
    for name, words in {
        "missing.mp4": "there is no file",
        "empty.mp4": "is an empty file",
        "noise.mp4": "cannot be read as a video",
        "text.txt": "is a text, not a video",
        "list.m3u8": "cannot be read as a video",
        "cut.mp4": "cannot be read as a video",
        "sound.mp4": "holds no video",
        ".": "is a directory",
    }.items():
        with pytest.raises(TargetError, match=words) as caught:
            VideoFile(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert not is_open(tmp_path / name)


def test_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    write_video(tmp_path / "u.mkv", [picture(0)], codec="ffv1")
    data = (tmp_path / "u.mkv").read_bytes()
    assert data.count(b"V_FFV1") == 1
    (tmp_path / "u.mkv").write_bytes(data.replace(b"V_FFV1", b"V_NONE"))
    with pytest.raises(TargetError, match="FFmpeg does not know its codec"):
        VideoFile(tmp_path / "u.mkv")


def test_another_thread_may_close_it(tmp_path: Path) -> None:
    write_video(tmp_path / "c.mp4", [picture(index) for index in range(300)])
    for _ in range(5):
        source = VideoFile(tmp_path / "c.mp4")
        has_begun = threading.Event()
        found: list[Frame] = []

        def read_on(source: VideoFile = source, found: list[Frame] = found, begun: threading.Event = has_begun) -> None:
            for frame in source:
                found.append(frame)
                begun.set()

        reader = threading.Thread(target=read_on)
        reader.start()
        assert has_begun.wait(60)
        source.close()
        assert not is_open(tmp_path / "c.mp4")
        reader.join(60)
        assert not reader.is_alive()
        assert [frame.index for frame in found] == list(range(len(found)))


def test_the_file_is_closed_after_the_last_frame_and_where_iteration_is_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "c.mp4"
    write_video(path, [picture(index) for index in range(5)])
    source = VideoFile(path)
    assert len(list(source)) == 5
    assert not is_open(path)
    source = VideoFile(path)
    next(source)
    assert is_open(path)
    source.close()
    source.close()
    assert not is_open(path)
    assert list(source) == []
    gc.disable()  # counting references is enough
    try:
        source = VideoFile(path)
        next(source)
        del source
        assert not is_open(path)
    finally:
        gc.enable()


def damage_of(path: Path) -> tuple[int, str]:
    """Return how many frames a video gives, and what is said of its damage."""
    with VideoFile(path) as source:
        return sum(1 for _ in source), source.damage


def grainy(num: int) -> list[np.ndarray]:
    """Return pictures with grain, whose packets hold bytes enough to be damaged."""
    random = np.random.default_rng(0)
    grain = random.integers(-20, 20, (num, 96, 128, 1))
    return [(picture(i, (96, 128)) + grain[i]).clip(0, 255).astype(np.uint8) for i in range(num)]


def test_a_video_that_breaks_off_names_its_last_frame(tmp_path: Path) -> None:
    write_video(tmp_path / "t.mkv", grainy(40), options=INTRA, with_sound=True)
    data = (tmp_path / "t.mkv").read_bytes()
    (tmp_path / "t.mkv").write_bytes(data[: len(data) // 2])
    num, said = damage_of(tmp_path / "t.mkv")
    assert 15 < num < 25
    assert said.endswith(f"it is cut off after frame {num - 1}: {num / 25:.2f} s of 1.60 s are there")


@pytest.mark.parametrize("kind", ["flipped", "zeroed"])
def test_damage_that_the_decoder_mends_names_its_frame(tmp_path: Path, kind: str) -> None:
    """The 20th packet is damaged, of pictures that refer to the one before: all from there on are wrong."""
    path = tmp_path / "f.mp4"
    write_video(path, grainy(40), options={"bf": "0", "g": "100"})
    with av.open(str(path)) as container:
        packet = next(packet for index, packet in enumerate(container.demux(video=0)) if index == 20)
    data = bytearray(path.read_bytes())
    for place in range(packet.pos + packet.size // 3, packet.pos + 2 * packet.size // 3):
        data[place] = data[place] ^ 0xFF if kind == "flipped" else 0
    path.write_bytes(bytes(data))
    num, said = damage_of(path)
    assert num in (39, 40)
    assert said.startswith(f"{path} is damaged from frame 20 on (")


def test_lost_parts_of_a_transport_stream_name_their_frame(tmp_path: Path) -> None:
    write_video(tmp_path / "l.ts", grainy(40), options=INTRA)
    data = (tmp_path / "l.ts").read_bytes()
    middle = len(data) // 188 // 2 * 188
    (tmp_path / "l.ts").write_bytes(data[:middle] + data[middle + 5 * 188 :])
    assert re.search(r"damaged from frame (18|19|20|21) on \(", damage_of(tmp_path / "l.ts")[1])


OPEN = {"x264-params": "open-gop=1:keyint=10:bframes=3"}
SOUND: dict[str, dict[str, Any]] = {
    "frames that refer to later ones.mp4": {"options": {"bf": "4", "b-adapt": "0", "g": "12"}},
    "groups that refer to others.mkv": {"options": OPEN},
    "interlaced.mp4": {"options": {"x264-params": "tff=1:interlaced=1"}},
    "intra refresh.ts": {"options": {"x264-params": "intra-refresh=1:keyint=20"}},
    "uneven times.mp4": {"pts": [3600 * i * (i + 3) for i in range(40)]},
    "uneven times.mkv": {"pts": [3600 * i * (i + 3) for i in range(40)]},
    "late beginning.mp4": {"pts": [3600 * (i + 50) for i in range(40)]},
    "a long gap.mp4": {"pts": [3600 * (i if i < 20 else i + 100) for i in range(40)]},
    "shorter sound.mkv": {"with_sound": True},
    "other codec.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "other codec.webm": {"codec": "libvpx"},
    "ten bits.mkv": {"pix_fmt": "yuv420p10le"},
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_video_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    write_video(tmp_path / name, grainy(40), **SOUND[name])
    assert damage_of(tmp_path / name) == (40, "")


def test_a_recording_that_begins_anywhere_or_was_joined_is_not_called_damaged(tmp_path: Path) -> None:
    write_video(tmp_path / "a.ts", grainy(40), options=OPEN)
    data = (tmp_path / "a.ts").read_bytes()
    (tmp_path / "b.ts").write_bytes(data[len(data) // 188 // 3 * 188 :])
    assert damage_of(tmp_path / "b.ts")[1] == ""
    (tmp_path / "c.ts").write_bytes(data + data)
    assert damage_of(tmp_path / "c.ts") == (80, "")
