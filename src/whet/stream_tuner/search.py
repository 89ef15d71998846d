"""Choose a stream's settings: samplers, steps, batches, skipped frames and threads, each judged on the same clips."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.errors import OptionError, WhetError
from whet.figures import duration, percent
from whet.measure.clock import time_measurable
from whet.models.diffusion.few_steps import SAMPLERS
from whet.stream_tuner.clips import Clip
from whet.stream_tuner.quality import Change, Figures, answers, change, measured
from whet.stream_tuner.sides import FRAMES, StreamAnswers, scratch_sink
from whet.streamer.replaced import Replacements, Shapes
from whet.streamer.stillness import StillnessFilter
from whet.streamer.stream import StreamOptions
from whet.streamer.targets import Opened, open_target

STILL = 0.98  # the similarity from which frames of a still scene are skipped
_LEAST_STILL = 0.05  # the share of skipped frames from which the filter is tried
_LEAST_GAIN = 1.03  # of a screening, from which a change of threads or of the batch is kept
_SCREEN_S = 0.6  # of timing
_MOST_STEPS = 8


@dataclass(frozen=True)
class Setting:
    """Hold one way to run the stream.

    Attributes:
        options: The options of the stream.
        codec_threads: The threads of a video's decoder and encoder; None for their own.
    """

    options: StreamOptions
    codec_threads: int | None = None

    @property
    def label(self) -> str:
        """Return the setting in words."""
        options = self.options
        words = []
        if options.steps is not None:
            sampler = f" of {options.sampler}" if options.sampler else ""
            words.append(f"{options.steps} step{'s' * (options.steps > 1)}{sampler}")
            if options.steps > 1:
                words.append("rolling batch" if options.rolling else "one by one")
        if options.stillness is not None:
            words.append(f"still frames skipped from {options.stillness:g}")
        if options.threads is not None:
            words.append(f"{options.threads} thread{'s' * (options.threads > 1)}")
        if self.codec_threads is not None:
            words.append(f"{self.codec_threads} for the codec")
        return ", ".join(words) or "as it is"

    def changed(self, **values: Any) -> "Setting":
        """Return the setting with other options."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, **values))


@dataclass(frozen=True)
class Trial:
    """Hold what one setting gave.

    Attributes:
        setting: The setting.
        figures: Its quality; None where it failed.
        change: Its quality beside the original's.
        s_per_frame: Seconds of a frame in the screening; None where it was not timed.
        failure: Why it failed; "" where it did not.
    """

    setting: Setting
    figures: Figures | None = None
    change: Change | None = None
    s_per_frame: float | None = None
    failure: str = ""

    @property
    def is_same(self) -> bool:
        """Return whether the quality is the original's, within what is allowed."""
        return self.change is not None and self.change.is_same

    @property
    def sentence(self) -> str:
        """Return what came out, in words."""
        if self.failure:
            return self.failure
        parts = [] if self.s_per_frame is None else [f"{duration(self.s_per_frame)} a frame"]
        if self.figures is not None:
            parts.append(f"similarity {self.figures.ssim:.3f}")
        if self.change is not None and self.change.reasons:
            parts.append("; ".join(self.change.reasons))
        return ", ".join(parts)


@dataclass
class Bench:
    """Judge and time settings of one stream.

    Attributes:
        target: The stream.
        source: The name of the source for timing.
        sink_suffix: The suffix of the video that is written while it is timed; "" for none.
        clips: The clips, with their truth.
        original: The quality of the original on them; None until it is known.
        max_drop: The allowed drop in quality, as a fraction.
        scratch: A directory for files that nobody keeps.
        models: What stands for the stream's models, with the shapes that it takes, by the name of the call.
        report: Is told of each trial.
    """

    target: str
    source: str
    sink_suffix: str
    clips: Sequence[Clip]
    max_drop: float
    scratch: Path
    original: Figures | None = None
    models: dict[str, tuple[Any, Shapes]] = field(default_factory=dict)
    report: Callable[[Trial], None] = lambda trial: None
    trials: list[Trial] = field(default_factory=list)

    def open(self, setting: Setting) -> Opened:
        """Open the stream's model with a setting, and with what stands for its models."""
        opened = open_target(self.target, setting.options)
        if self.models:
            replacements = Replacements(opened.model.step)
            for name, (model, shapes) in self.models.items():
                replacements.replace(name, model, shapes)
        return opened

    def tried(self, setting: Setting, *, judges: bool = True, times: bool = True) -> Trial:
        """Judge a setting, time it, or both."""
        figures, found, seconds = None, None, None
        try:
            opened = self.open(setting)
            if judges:
                figures = measured(self.clips, answers(opened, self.clips, setting.options))
                found = None if self.original is None else change(self.original, figures, self.max_drop)
            if times:
                seconds = self._timed(opened, setting)
            trial = Trial(setting, figures, found, seconds)
        except WhetError as error:
            trial = Trial(setting, failure=str(error))
        self.trials.append(trial)
        self.report(trial)
        return trial

    def _timed(self, opened: Opened, setting: Setting) -> float:
        sink = scratch_sink(self.scratch, self.sink_suffix, setting.codec_threads)
        stream = StreamAnswers(opened, setting.options, self.source, sink, setting.codec_threads)
        try:
            return time_measurable(stream, budget_s=_SCREEN_S).latency_ms / 1e3 / FRAMES
        finally:
            stream.close()


def samplers(target: str, options: StreamOptions) -> list[str | None]:
    """Return the samplers that a stream can have, its own first; only None where it has no such choice."""
    own = open_target(target, options).sampler
    return [None] if own is None else [own, *(name for name in SAMPLERS if name != own)]


def fewer_steps(start: Setting, names: Sequence[str | None]) -> Iterator[Setting]:
    """Yield settings with fewer steps than a setting has, from one step on, with each sampler."""
    for steps in range(1, start.options.steps or 1):
        for name in names:
            yield start.changed(steps=steps, sampler=name)


def choose_fastest(bench: Bench, start: Setting, names: Sequence[str | None], is_over: Callable[[], bool]) -> Setting:
    """Return the setting with the fewest steps that keeps the quality; the start where none does."""
    for setting in fewer_steps(start, names):
        if is_over():
            break
        if bench.tried(setting, times=False).is_same:
            return setting
    return start


def choose_best(
    bench: Bench, start: Setting, names: Sequence[str | None], budget_s: float, is_over: Callable[[], bool]
) -> Setting:
    """Return the setting of the best quality among those that keep a budget.

    Args:
        bench: Judges and times settings.
        start: The setting to begin with.
        names: The samplers.
        budget_s: Seconds that a frame may take.
        is_over: Whether the time is up.

    Raises:
        OptionError: Even one step takes longer than the budget.
    """
    fitting: list[Trial] = []
    for steps in range(1, _MOST_STEPS + 1) if start.options.steps else [None]:
        trial = bench.tried(start.changed(steps=steps, sampler=names[0]))
        if trial.s_per_frame is None or trial.s_per_frame > budget_s:
            break
        fitting.append(trial)
        for name in names[1:]:
            if is_over():
                break
            fitting.append(bench.tried(start.changed(steps=steps, sampler=name), times=False))
        if is_over():
            break
    if not fitting:
        least = f"takes {duration(trial.s_per_frame)}" if trial.s_per_frame else trial.failure
        raise OptionError(f"no setting keeps the budget of {duration(budget_s)}: one step a frame {least}")
    judged = [trial for trial in fitting if trial.figures is not None]
    return max(judged, key=lambda one: one.figures.ssim if one.figures else 0.0).setting


def choose_batch(bench: Bench, start: Setting) -> Setting:
    """Return the setting with or without a rolling batch.

    One frame after the other has the lower latency, so the batch has to be clearly faster. Where the other way does not
    keep the quality, the setting stays as it is.
    """
    if (start.options.steps or 1) == 1:
        return start
    trials = {rolling: bench.tried(start.changed(rolling=rolling)) for rolling in (True, False)}
    wanted = _is_faster(trials[True], trials[False])
    return trials[wanted].setting if trials[wanted].is_same else start


def choose_threads(bench: Bench, start: Setting, has_codec: bool) -> Setting:
    """Return the setting with the numbers of threads that are fastest: of the model, and of a video's codec."""
    best = bench.tried(start, judges=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = sorted({1, max(1, cores // 2), cores})
    candidates = [start.changed(threads=count) for count in counts]
    for setting in candidates:
        trial = bench.tried(setting, judges=False)
        if _is_faster(trial, best):
            best = trial
    if has_codec:
        for count in counts:
            trial = bench.tried(dataclasses.replace(best.setting, codec_threads=count), judges=False)
            if _is_faster(trial, best):
                best = trial
    return best.setting


def choose_filter(bench: Bench, start: Setting) -> tuple[Setting, str]:
    """Return the setting with frames of still scenes skipped, where there are some and the quality holds; and why."""
    frames = [frame for clip in bench.clips for frame in clip.frames]
    still = StillnessFilter(STILL, seed=start.options.seed)
    share = sum(still.skips(frame) for frame in frames) / len(frames)
    if share < _LEAST_STILL:
        return start, f"{percent(share)} of the frames are still: none are skipped"
    trial = bench.tried(start.changed(stillness=STILL))
    if trial.is_same:
        return trial.setting, f"{percent(share)} of the frames are still, and repeat the answer before"
    why = trial.failure or "; ".join(trial.change.reasons if trial.change else ())
    return start, f"{percent(share)} of the frames are still, but skipping them costs quality: {why}"


def _is_faster(new: Trial, old: Trial) -> bool:
    if new.s_per_frame is None or old.s_per_frame is None:
        return False
    return old.s_per_frame / new.s_per_frame >= _LEAST_GAIN
