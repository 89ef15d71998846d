"""Make small videos with PyAV alone, for tests that read them."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

TIME_BASE = Fraction(1, 90_000)


def picture(index: int, size: tuple[int, int] = (48, 64)) -> np.ndarray:
    """Return smooth colours that change from picture to picture, so that a codec keeps them well."""
    rows, columns = np.mgrid[: size[0], : size[1]] / 64
    waves = [np.sin(rows * 3 + index * 0.1), np.cos(columns * 3 + index * 0.07), np.sin(rows + columns + 1)]
    return np.clip(128 + 100 * np.stack(waves, -1), 0, 255).astype(np.uint8)


def quadrants(size: tuple[int, int] = (48, 64)) -> np.ndarray:
    """Return a picture of four colours: no turn and no mirror maps it to itself."""
    image = np.zeros((*size, 3), np.uint8)
    top, left = size[0] // 2, size[1] // 2
    image[:top, :left], image[:top, left:], image[top:, :left], image[top:, left:] = 230, 160, 90, 20
    return image


def write_video(
    path: Path,
    pictures: list[np.ndarray],
    *,
    pts: list[int] | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    rotation: tuple[int, bool] | None = None,
    pixel_aspect: Fraction | None = None,
    format: str | None = None,
    with_sound: bool = False,
) -> None:
    """Write pictures at timestamps in 1/90000 s, 25 a second if not given."""
    pts = pts or [3600 * index for index in range(len(pictures))]
    with av.open(str(path), "w", format=format) as container:
        sound = container.add_stream("aac", rate=16_000, layout="mono") if with_sound else None
        stream = container.add_stream(codec, rate=25, options=options or {})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pix_fmt
        stream.codec_context.time_base = TIME_BASE
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if rotation is not None:
            stream.set_display_rotation(rotation[0], hflip=rotation[1])
        for image, moment in zip(pictures, pts, strict=True):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = moment, TIME_BASE
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
            silence.sample_rate, silence.pts = 16_000, 0
            container.mux(sound.encode(silence))
            container.mux(sound.encode(None))


def write_planes(path: Path, planes: tuple[int, int, int], *, matrix: int | None, is_full: bool | None) -> None:
    """Write one picture of a single colour, given as Y, U and V, losslessly, labelled with its matrix and range."""
    frame = av.VideoFrame(64, 48, "yuv420p")
    for plane, value in zip(frame.planes, planes, strict=True):
        plane.update(bytes([value]) * plane.buffer_size)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"qp": "0"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        if matrix is not None:
            stream.codec_context.colorspace = frame.colorspace = matrix
        if is_full is not None:
            stream.codec_context.color_range = frame.color_range = 2 if is_full else 1
        frame.pts = 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def damage(path: Path, indices: set[int]) -> None:
    """Overwrite the bytes of some of a video's packets."""
    places = []
    with av.open(str(path)) as container:
        for index, packet in enumerate(container.demux(video=0)):
            if index in indices:
                places.append((packet.pos, packet.size))
    data = bytearray(path.read_bytes())
    for start, size in places:
        data[start : start + size] = b"\xff" * size
    path.write_bytes(bytes(data))


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of two uint8 pictures in dB."""
    return float(10 * np.log10(255**2 / np.mean((one.astype(np.float64) - other.astype(np.float64)) ** 2)))
