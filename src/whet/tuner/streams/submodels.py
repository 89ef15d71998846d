"""Tune the models inside a stream: their calls are captured, and each variant is judged by the whole stream."""

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whet.core.artefact import Manifest, read_manifest
from whet.core.artefact.runtime import MODEL, RESULT
from whet.core.workload import InferenceWorkload, Quality
from whet.errors import WhetError
from whet.measure.frames import ssim
from whet.streamer.module_swaps import Replacements, Shapes, shapes_of
from whet.streamer.stream import StreamOptions
from whet.streamer.targets import Opened
from whet.tuner.listener import Listener
from whet.tuner.result import Result
from whet.tuner.streams.clips import Clip
from whet.tuner.streams.quality import answers
from whet.tuner.study import FILE as STUDY
from whet.tuner.tuning import tune

_MOST_CALLS = 8  # inputs of one model that its variants are timed and compared on
_CAPTURED_FRAMES = 12
_LEAST_SHARE = 0.1  # of the models' time, below which a model is left as it is
_JUDGED_FRAMES = 24  # of each variant that is tried; the search judges its winner on all frames


_Inputs = tuple[tuple[Tensor, ...], dict[str, Tensor]]


@dataclass
class Captured:
    """Hold what one model was called with while a stream ran.

    Attributes:
        name: The name of the call.
        module: The model, which takes and returns what the call does.
        shapes: The shapes of the inputs that came most often.
        inputs: Some of the inputs of these shapes, as arguments by place and by name.
        seconds: The time of all of its calls.
    """

    name: str
    module: nn.Module
    shapes: Shapes
    inputs: list[_Inputs] = field(default_factory=list)
    seconds: float = 0.0


def capture(
    opened: Opened, replacements: Replacements, clips: Sequence[Clip], options: StreamOptions
) -> list[Captured]:
    """Run a stream on the first frames of a clip, and return what each of its models was called with.

    Models that take less than a tenth of the time of all are left out.
    """
    modules: Mapping[str, nn.Module] = getattr(opened.model.step, "call_modules", {})
    seen: dict[str, list[_Inputs]] = {name: [] for name in replacements.names}
    seconds = dict.fromkeys(replacements.names, 0.0)

    def noting(name: str) -> Callable[..., Any]:
        def call(*args: Tensor, **named: Tensor) -> Any:
            with torch.inference_mode(False):  # tensors of inference mode cannot be traced
                seen[name].append((tuple(x.clone() for x in args), {key: x.clone() for key, x in named.items()}))
            began = time.perf_counter()
            answer = modules[name](*args, **named)
            seconds[name] += time.perf_counter() - began
            return answer

        return call

    short = Clip(list(islice(clips[0].frames, _CAPTURED_FRAMES)), prompt=clips[0].prompt)
    for name in replacements.names:
        replacements.replace(name, noting(name))
    try:
        answers(opened, [short], options)
    finally:
        replacements.put_back()
    found = []
    for name, calls in seen.items():
        if calls:
            shapes = [shapes_of(args, named) for args, named in calls]
            usual = max(set(shapes), key=shapes.count)
            inputs = [call for call, shape in zip(calls, shapes, strict=True) if shape == usual]
            places = np.linspace(0, len(inputs) - 1, min(_MOST_CALLS, len(inputs))).astype(int)
            kept = [inputs[place] for place in places]
            found.append(Captured(name, modules[name], usual, kept, seconds[name]))
    whole = sum(one.seconds for one in found)
    return [one for one in found if one.seconds >= _LEAST_SHARE * whole]


@dataclass(frozen=True)
class TunedCall:
    """Hold what tuning one model gave.

    Attributes:
        shapes: The shapes that the artefact takes.
        directory: The artefact; None where the model stays as it is.
        reason: Why it stays as it is; "" where it doesn't.
    """

    name: str
    shapes: Shapes
    result: Result | None
    directory: Path | None
    reason: str = ""

    @property
    def recipe(self) -> str:
        return self.result.best.label if self.directory is not None and self.result is not None else "as it is"


def tune_call(
    captured: Captured,
    judged: "JudgedStream",
    *,
    out: Path,
    budget_s: float,
    max_drop: float,
    exclude: Sequence[str],
    on_busy: str,
    busy_wait_s: float,
    listener: Listener,
) -> TunedCall:
    """Search for the fastest recipe of one model at the same quality of the whole stream.

    Args:
        out: The directory for the search's results. A search that lies there goes on.
        max_drop: The allowed drop of the structural similarity, as a fraction.
    """
    # A stream's search that was stopped goes on, and so do those within it; one that ended is not made twice.
    if (out / RESULT).is_file():
        return _found(captured, Result.model_validate_json((out / RESULT).read_text(encoding="utf-8")))
    is_begun = (out / STUDY).is_file()
    if not is_begun:
        shutil.rmtree(out, ignore_errors=True)
    workload = InferenceWorkload(
        model=copy.deepcopy(captured.module).eval(),
        inputs=[named or args for args, named in captured.inputs],
        quality=Quality(f"similarity of the stream with this {captured.name}", judged.scorer(captured)),
        name=captured.name,
        num_samples=1,
    )
    try:
        result = tune(
            workload,
            max_drop=max_drop,
            budget_s=budget_s,
            out=out,
            resume=is_begun,
            exclude=exclude,
            on_busy=on_busy,
            busy_wait_s=busy_wait_s,
            listener=listener,
        )
    except WhetError as error:
        return TunedCall(captured.name, captured.shapes, None, None, f"it could not be tuned: {error}")
    return _found(captured, result)


def _found(captured: Captured, result: Result) -> TunedCall:
    if result.verdict != "gain":
        return TunedCall(captured.name, captured.shapes, result, None, result.sentence)
    if not result.has_model or result.libraries:
        why = result.unsaved or "its artefact needs operators of the user's own"
        return TunedCall(captured.name, captured.shapes, result, None, why)
    directory = result.directory / MODEL
    return TunedCall(captured.name, shapes_taken(captured.shapes, read_manifest(directory)), result, directory)


def shapes_taken(captured: Shapes, manifest: Manifest) -> Shapes:
    """Return the shapes that an artefact takes: those of the captured calls, with any size where it takes any."""
    inputs = manifest.read_signature().inputs
    by_place = [argument for argument in inputs if argument.name is None]
    known = {str(place): argument.shape for place, argument in enumerate(by_place)}
    known |= {argument.name: argument.shape for argument in inputs if argument.name is not None}
    return tuple(
        (name, tuple(None if free is None else size for size, free in zip(shape, known[name], strict=True)))
        for name, shape in captured
    )


@dataclass(frozen=True)
class JudgedStream:
    """Measure a whole stream's quality on clips with their truth, while something else stands for one of its models."""

    opened: Opened
    options: StreamOptions
    clips: Sequence[Clip]

    def scorer(self, captured: Captured) -> Callable[[Callable[..., Any]], list[float]]:
        """Return a function that scores a variant of a model: the structural similarity of each answer to the truth.

        It can be handed to another process, together with the stream's model.
        """
        clips = _first_frames(self.clips, _JUDGED_FRAMES)
        opened, options, name, shapes = self.opened, self.options, captured.name, captured.shapes

        def score(predict: Callable[..., Any]) -> list[float]:
            replacements = Replacements(opened.model.step)
            with torch.inference_mode(False), replacements.replaced(name, predict, shapes):
                found = answers(opened, clips, options)
            truths = [truth for clip in clips for truth in clip.truth or ()]
            images = [image for clip in found for image in clip]
            return [ssim(image, truth) for image, truth in zip(images, truths, strict=True)]

        return score


def _first_frames(clips: Sequence[Clip], num_frames: int) -> list[Clip]:
    """Return the first frames of clips, so many in all, as evenly as the clips allow."""
    each = max(2, num_frames // max(1, len(clips)))
    kept = list(clips)[: max(1, num_frames // each)]
    return [
        Clip(list(clip.frames[:each]), None if clip.truth is None else list(clip.truth[:each]), clip.prompt)
        for clip in kept
    ]
