"""How often the drift test of `whet stream --drift` calls faithful streams of real footage drift.

    python benchmarks/drift_alarms.py VIDEO... [--windows 20] [--out FILE]

Each window is a square of a video, drawn by chance, over successive frames. Its stream shows the frames as they are,
with noise, in other colours, sharpened, late, or in few levels: none of these drifts. Every one is judged against a
calibration on the window's own frames. The streams of a window share its footage, so the interval is of a bootstrap
over windows. Writes docs/results/drift_alarms.json.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from circumstances import circumstances
from rich.console import Console

from whet.files import write_whole
from whet.streamer.drift.calibration import calibrate
from whet.streamer.drift.meter import DriftMeter
from whet.streamer.drift.report import report

RESULT = Path(__file__).parents[1] / "docs" / "results" / "drift_alarms.json"
SIDE, FRAMES = 48, 160
MOST = 0.05  # whet's goal for the rate
Clip = list[np.ndarray]


def _levels(values: np.ndarray) -> np.ndarray:
    return np.rint(values).clip(0, 255).astype(np.uint8)


def _noisy(clip: Clip) -> Clip:
    random = np.random.default_rng(0)
    return [_levels(frame + random.normal(size=frame.shape) * 6) for frame in clip]


def _tinted(clip: Clip) -> Clip:
    return [_levels(255 * (frame / 255) ** 0.7 * [1, 0.8, 0.6]) for frame in clip]


def _sharpened(clip: Clip) -> Clip:
    def blurred(frame: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(frame.transpose(2, 0, 1).astype(np.float32))[None]
        padded = torch.nn.functional.pad(tensor, (1, 1, 1, 1), mode="replicate")
        return torch.nn.functional.avg_pool2d(padded, 3, stride=1)[0].numpy().transpose(1, 2, 0)

    return [_levels(1.5 * frame - 0.5 * blurred(frame)) for frame in clip]


def _late(clip: Clip) -> Clip:
    return [clip[max(0, i - 3)] for i in range(len(clip))]


def _coarse(clip: Clip) -> Clip:
    return [_levels(np.round(frame / 24.0) * 24) for frame in clip]


STREAMS: dict[str, Callable[[Clip], Clip]] = {
    "as they are": lambda clip: clip,
    "noise": _noisy,
    "other colours": _tinted,
    "sharpened": _sharpened,
    "three frames late": _late,
    "few levels": _coarse,
}


def main() -> None:
    """Judge every stream of every window, and write how many were called drift."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--windows", type=int, default=20, help="windows of each video")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    random, rows = np.random.default_rng(0), []
    for video in given.videos:
        frames = _decoded(video)
        if len(frames) < FRAMES:
            parser.error(f"{video} has {len(frames)} frames; a window takes {FRAMES}")
        for number in range(given.windows):
            first, side, x, y = _drawn(random, frames)
            clip = [_scaled(frame[y : y + side, x : x + side]) for frame in frames[first : first + FRAMES]]
            known = calibrate(clip, num_frames=len(clip))
            for name, made in STREAMS.items():
                found = _judged(made(clip), clip, known)
                rows.append({"video": video.name, "window": number, "stream": name, **found})
    judged = [row for row in rows if row["verdict"] != "inconclusive"]
    if not judged:
        raise SystemExit("no stream could be judged: nothing moves in these videos")
    num = sum(row["verdict"] == "drift" for row in judged)
    low, high = _interval(judged)
    found = {
        "goal": MOST,
        "frames": FRAMES,
        "side": SIDE,
        "num": len(judged),
        "num_windows": len({(row["video"], row["window"]) for row in judged}),
        "num_inconclusive": len(rows) - len(judged),
        "num_alarms": num,
        "ci95": [low, high],
        "rows": rows,
    }
    command = "python benchmarks/drift_alarms.py VIDEO..."
    write_whole(given.out, json.dumps({**circumstances(command), **found}, indent=1) + "\n")
    Console().print(f"{num} alarms of {len(judged)} ({low:.1%} to {high:.1%})")


def _interval(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the 95 % interval of the rate of alarms; by the rule of three where there is none."""
    windows = dict[tuple[str, int], list[bool]]()
    for row in rows:
        windows.setdefault((row["video"], row["window"]), []).append(row["verdict"] == "drift")
    if not any(map(any, windows.values())):
        return 0.0, min(1.0, 3 / len(windows))
    alarms, counts = (np.array([one(found) for found in windows.values()]) for one in (sum, len))
    drawn = np.random.default_rng(0).integers(len(windows), size=(10_000, len(windows)))
    rates = alarms[drawn].sum(1) / counts[drawn].sum(1)
    return float(np.quantile(rates, 0.025)), float(np.quantile(rates, 0.975))


def _decoded(video: Path) -> Clip:
    """Return the frames of the longest stream of pictures, RGB."""
    with av.open(str(video)) as container:
        stream = max(container.streams.video, key=lambda one: one.frames)
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def _drawn(random: np.random.Generator, frames: Clip) -> tuple[int, int, int, int]:
    """Draw a window: its first frame, its side, and its place."""
    height, width, _ = frames[0].shape
    side = int(random.integers(min(height, width) // 2, min(height, width) + 1))
    return (
        int(random.integers(max(1, len(frames) - FRAMES + 1))),
        side,
        int(random.integers(width - side + 1)),
        int(random.integers(height - side + 1)),
    )


def _scaled(frame: np.ndarray) -> np.ndarray:
    tensor = torch.from_numpy(frame.transpose(2, 0, 1).astype(np.float32))[None]
    scaled = torch.nn.functional.interpolate(tensor, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    return _levels(scaled[0].numpy().transpose(1, 2, 0))


def _judged(outputs: Clip, inputs: Clip, known: Any) -> dict[str, Any]:
    meter = DriftMeter(len(inputs))
    for output, shown in zip(outputs, inputs, strict=True):
        meter.add(output, shown)
    verdict = report(meter.series(), known, subject="test", source="a clip").verdict
    return {"verdict": verdict.word, "reasons": list(verdict.reasons)}


if __name__ == "__main__":
    main()
