"""Measure how good a stream's answers are, and whether another way to compute them is as good."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from whet.errors import ModelError
from whet.measure.frames import MIN_SIDE, flicker, input_flow, psnr, sharpness, ssim, warp_error
from whet.measure.stats import mean_interval
from whet.streamer.frames import Image
from whet.streamer.sources.memory import MemoryClip
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import Opened
from whet.tuner.records import StreamFigures
from whet.tuner.streams.clips import Clip

_SAME_DB = 100.0  # what counts as the PSNR of equal frames, whose error is 0
_GUARDED = 0.1  # how much further the sharpness may be from the truth's, and how much flicker and warp error may rise
_HALF_LEVEL = 0.5 / 255  # on the scale from 0 to 1


class Figures(StreamFigures, frozen=True):
    """Hold the quality of a stream's answers, over all clips, and the structural similarity of each answer."""

    ssim_by_frame: tuple[float, ...] = ()

    def summary(self, *, is_same: bool = True) -> StreamFigures:
        """Return the figures without those of each frame, as results hold them."""
        return StreamFigures.model_validate({**self.model_dump(exclude={"ssim_by_frame"}), "is_same": is_same})


def answers(opened: Opened, clips: Sequence[Clip], options: StreamOptions) -> list[list[Image]]:
    """Return what a stream makes of each clip, which it sees from its first frame on with nothing before it.

    Raises:
        ModelError: An answer is not finite.
        WhetError: The model failed.
    """
    plain = replace(options, budget_s=None, degrades=False, warms_up=False, same_size=True)
    found = []
    for clip in clips:
        if clip.prompt is not None and opened.prepare_prompt is not None:
            opened.prepare_prompt(clip.prompt, "")()
        images = []
        with Stream(opened, _source_of(clip), plain) as stream:
            for answer in stream:
                if answer.kind == "not finite":
                    raise ModelError("an answer holds NaN or infinity")
                images.append(answer.image)
        found.append(images)
    return found


def _source_of(clip: Clip) -> Callable[[Any], MemoryClip]:
    return lambda size: MemoryClip("clip", clip.frames)


def with_truth(clips: Sequence[Clip], reference: Sequence[Sequence[Image]]) -> list[Clip]:
    """Return clips in which the truth, where nobody knows it, is what the original made of them."""
    return [
        replace(clip, truth=images) if clip.truth is None else clip
        for clip, images in zip(clips, reference, strict=True)
    ]


def measured(clips: Sequence[Clip], found: Sequence[Sequence[Image]]) -> Figures:
    """Return the quality of answers to clips whose truth is known, as many to each as it has frames."""
    names = ("psnr_db", "ssim", "sharpness", "flicker", "warp_error", "accuracy")
    rows: dict[str, list[float]] = {name: [] for name in names}
    for clip, images in zip(clips, found, strict=True):
        assert clip.truth is not None
        for image, truth in zip(images, clip.truth, strict=True):
            rows["psnr_db"].append(min(_SAME_DB, psnr(image, truth)))
            rows["ssim"].append(ssim(image, truth))
            rows["sharpness"].append(_share(sharpness(image), sharpness(truth)))
        for before, after in pairwise(range(len(images))):
            pairs = images[before], images[after], clip.truth[before], clip.truth[after]
            rows["flicker"].append(flicker(*pairs))
            rows["warp_error"].append(_warp(clip.frames[before], clip.frames[after], pairs))
        if clip.judge is not None:
            rows["accuracy"] += [float(score) for score in clip.judge(images)]
    means = {name: _mean(values) for name, values in rows.items() if values or name != "accuracy"}
    return Figures.model_validate({**means, "ssim_by_frame": rows["ssim"]})


def _warp(before: Image, after: Image, pairs: tuple[Image, Image, Image, Image]) -> float:
    """Return the warp error of two answers, less that of the two frames of the truth."""
    if min(before.shape[:2]) < MIN_SIDE:
        return 0.0
    flow = input_flow(before, after)
    return math.sqrt(warp_error(*pairs[:2], flow)) - math.sqrt(warp_error(*pairs[2:], flow))


def _share(value: float, reference: float) -> float:
    return value / reference if reference > 0 else 1.0


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else 0.0


def _blur(figures: Figures) -> float:
    """Return how far the sharpness is from that of the truth, either way, as the logarithm of a ratio."""
    return abs(math.log(max(figures.sharpness, 1e-6)))


@dataclass(frozen=True)
class Change:
    """Say how the quality of one stream compares with that of another.

    Attributes:
        drop: The drop of the structural similarity, as a fraction of the original's.
        drop_ci95: Its interval over the frames.
        reasons: Why it is not the same quality, in clauses; empty where it is.
    """

    drop: float
    drop_ci95: tuple[float, float]
    reasons: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not self.reasons


def change(original: Figures, found: Figures, max_drop: float) -> Change:
    """Judge whether answers are as good as the original's, on the same clips.

    The structural similarity, the signal-to-noise ratio and the accuracy may drop by at most `max_drop` of the
    original's. The sharpness may move away from the truth's by at most a tenth. Flicker and warp error may rise by at
    most a tenth of the original's, or by half a grey level of 256, whichever is more.
    """
    reasons = []
    drops: Mapping[str, tuple[float, float]] = {
        "the structural similarity": (original.ssim, found.ssim),
        "the signal-to-noise ratio": (original.psnr_db, found.psnr_db),
        "the accuracy": (original.accuracy or 0.0, found.accuracy or 0.0),
    }
    has_truth = original.psnr_db < _SAME_DB  # else the original is the truth, and no other can have its ratio
    for name, (before, after) in drops.items():
        if name == "the signal-to-noise ratio" and not has_truth:
            continue
        if before - after > max_drop * abs(before) + 1e-12:
            reasons.append(f"{name} drops from {before:.3g} to {after:.3g}")
    if _blur(found) - _blur(original) > math.log1p(_GUARDED):
        reasons.append(f"the sharpness goes from {original.sharpness:.3g} to {found.sharpness:.3g}")
    for name, before, after in (
        ("the flicker", original.flicker, found.flicker),
        ("the warp error", original.warp_error, found.warp_error),
    ):
        if after - before > max(_GUARDED * abs(before), _HALF_LEVEL):
            reasons.append(f"{name} rises from {before:.3g} to {after:.3g}")
    by_frame = [
        (before - after) / abs(original.ssim) if original.ssim else before - after
        for before, after in zip(original.ssim_by_frame, found.ssim_by_frame, strict=True)
    ]
    interval = mean_interval(by_frame) if len(by_frame) > 1 else (by_frame[0], by_frame[0])
    return Change(float(np.mean(by_frame)), interval, tuple(reasons))
