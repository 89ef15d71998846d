"""Tune a stream from end to end: judge the original, tune its models, choose settings, prove, and write what was found.

The order depends on the goal. A model that works on one frame at a time takes the same shapes at any number of steps,
so it is tuned first, and the steps are chosen with it. In a rolling batch, the number of steps is the batch, so the
steps are chosen first.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from whet.artefact import load
from whet.comparison.claim import Claim
from whet.comparison.compare import TimeLimit
from whet.errors import OptionError, TargetError, WhetError
from whet.files import write_whole
from whet.measure.quiet import WAIT_S, OnBusy, Patience
from whet.stream_tuner import search
from whet.stream_tuner.clips import TUNING, Clip, Clips, clips_of_source
from whet.stream_tuner.denoiser import JudgedStream, TunedCall, capture, tune_call
from whet.stream_tuner.finals import (
    Finalist,
    budget_run,
    compared,
    others_of,
    write_finalist,
)
from whet.stream_tuner.outcome import by_budget, by_speed
from whet.stream_tuner.quality import Change, Figures, answers, change, measured, with_truth
from whet.stream_tuner.result import RESULT, Point, StreamTuning
from whet.stream_tuner.search import Bench, Setting, Trial
from whet.streamer.replaced import Replacements
from whet.streamer.sources import open_source, refuse_live
from whet.streamer.stream import StreamOptions
from whet.streamer.targets import open_target
from whet.streamer.tuned import TunedModel, is_tuned, read_tuned
from whet.techniques import TABLE
from whet.tuner.goal import MAX_DROP
from whet.tuner.listener import Listener
from whet.tuner.preparation import checked_directory
from whet.tuner.tuning import check_excluded

DEFAULT_BUDGET_S = 900.0
_MODELS_SHARE = 0.5  # of the budget, for the models
_FINALS_SHARE = 0.25  # of the budget, kept for the proof
_CLIP_FRAMES = 48
_MODELS = "models"
_SEARCHES = "searches"


class StreamListener:
    """Watch the progress. Each method does nothing here; the command line overrides them."""

    def says(self, sentence: str) -> None:
        """Note what was found or decided."""

    def tried(self, trial: Trial) -> None:
        """Note that a setting was judged or timed."""

    def tuning(self, name: str, budget_s: float) -> Listener:
        """Note that the search for one model begins, and return who watches it."""
        return Listener()

    def waiting(self, text: str) -> None:
        """Note that the machine is busy and whet waits for quiet. The text is "" once it goes on."""

    def measured(self, rounds_done: int, rounds: int) -> None:
        """Note that a round of the final comparison has ended."""


@dataclass(frozen=True, kw_only=True)
class StreamGoal:
    """Say what tuning a stream is to reach.

    Attributes:
        frame_budget_s: Seconds that a frame may take: then the best quality within them is looked for. None looks for
            the most frames of the same quality.
        max_drop: The allowed drop in quality, as a fraction of the original's.
        budget_s: Seconds for the whole search. Waiting for a quiet machine comes on top.
        exclude: Techniques that are not tried on the models.
        on_busy: What to do on a busy machine; see `whet.tune`.
        busy_wait_s: Seconds to wait for a quiet machine in all.

    Raises:
        OptionError: A number is out of its range.
    """

    frame_budget_s: float | None = None
    max_drop: float = MAX_DROP
    budget_s: float = DEFAULT_BUDGET_S
    exclude: tuple[str, ...] = ()
    on_busy: str = OnBusy.WAIT
    busy_wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        OnBusy.checked(self.on_busy)
        if self.frame_budget_s is not None and not self.frame_budget_s > 0:
            raise OptionError(f"--frame-budget is a time above 0, as 40ms; got {self.frame_budget_s:g} s")
        if not 0 <= self.max_drop < 1:
            raise OptionError(f"--max-drop is a fraction from 0 to below 1; got {self.max_drop:g}")
        if not self.budget_s > 0:
            raise OptionError(f"--budget is a time above 0, as 10m; got {self.budget_s:g} s")


def tune_stream(
    target: str,
    source: str = "synthetic",
    options: StreamOptions | None = None,
    goal: StreamGoal | None = None,
    *,
    clips: Clips | None = None,
    sink_suffix: str = "",
    out: str | os.PathLike[str] | None = None,
    listener: StreamListener | None = None,
) -> StreamTuning:
    """Find the fastest way to run a stream at the same quality, or the best one within a budget, and prove it.

    Args:
        target: What `whet stream` takes, but for a stream in memory.
        source: The frames that times are measured on: a video, a folder or a synthetic clip.
        options: How the stream runs now: the original.
        goal: What to reach.
        clips: Frames with their truth, for the quality. Without them, frames of the source are taken, and what the
            original makes of them counts as the truth.
        sink_suffix: The suffix of a video that is written while times are measured, as ".mp4"; "" for none.
        out: A new directory for the result; a temporary one, if not given.
        listener: Is told of the progress.

    Raises:
        WhetError: Anything that the user can mend, before anything is written.
    """
    check_excluded((goal or StreamGoal()).exclude, TABLE)
    if is_tuned(Path(target)):
        raise TargetError(f"{target} is a tuned stream already; tune {read_tuned(Path(target)).target}")
    run = _Run(target, source, options or StreamOptions(), goal or StreamGoal(), sink_suffix, listener)
    return run.tuned(clips, checked_directory(out, resume=False, has_own_study=True))


@dataclass
class _Run:
    """Hold the state of one search."""

    target: str
    source: str
    options: StreamOptions
    goal: StreamGoal
    sink_suffix: str
    given_listener: StreamListener | None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.options.budget_s is not None:
            raise OptionError("a stream is tuned to a budget by frame_budget_s (--frame-budget)")
        self.listener = self.given_listener or StreamListener()
        self.patience = Patience(OnBusy(self.goal.on_busy), self.goal.busy_wait_s, report=self.listener.waiting)
        self.began = time.monotonic()
        self.ends = self.goal.budget_s * (1 - _FINALS_SHARE)

    def elapsed_s(self) -> float:
        """Return the seconds of the budget that are spent."""
        return time.monotonic() - self.began - self.patience.spent_s

    def says(self, sentence: str) -> None:
        """Note a sentence, and tell it."""
        self.notes.append(sentence)
        self.listener.says(sentence)

    def tuned(self, given: Clips | None, chosen: Path | None) -> StreamTuning:
        """Search, prove and write."""
        opened = open_target(self.target, self.options)
        original = Setting(replace(self.options, steps=opened.model.steps, sampler=opened.sampler))
        with open_source(self.source, size=opened.size) as source:
            refuse_live(source, TUNING)
        clips = given or clips_of_source(self.source, opened.size, _CLIP_FRAMES)
        directory = chosen or Path(tempfile.mkdtemp(prefix="whet-stream-"))
        was_there = directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        self.patience.begin()
        try:
            with tempfile.TemporaryDirectory(prefix="whet-stream-") as scratch:
                bench = self._bench(original, clips, Path(scratch))
                best, calls = self._searched(bench, original, directory)
                result = self._proved(bench, original, best, calls, clips, directory, Path(scratch))
        except WhetError:
            if not was_there or chosen is None:  # nothing is left of a search that came to nothing
                shutil.rmtree(directory, ignore_errors=True)
            raise
        result = replace(
            result,
            has_truth=all(clip.truth is not None for clip in clips.reported_on),
            notes=tuple(self.notes),
            trials=tuple(bench.trials),
            seconds=self.elapsed_s(),
            out=str(directory),
        )
        write_whole(directory / RESULT, result.to_json())
        return result

    def _bench(self, original: Setting, clips: Clips, scratch: Path) -> Bench:
        """Judge the original on the clips to choose on, and return what judges all others."""
        opened = open_target(self.target, original.options)
        found = answers(opened, clips.chosen_on, original.options)
        judged = with_truth(clips.chosen_on, found)
        return Bench(
            target=self.target,
            source=self.source,
            sink_suffix=self.sink_suffix,
            clips=judged,
            max_drop=self.goal.max_drop,
            scratch=scratch,
            original=measured(judged, found),
            report=self.listener.tried,
        )

    def _searched(self, bench: Bench, original: Setting, directory: Path) -> tuple[Setting, list[TunedCall]]:
        """Return the best setting, and what tuning the models gave."""
        names = search.samplers(self.target, original.options)
        start = search.choose_batch(bench, original)
        self.says(f"the stream runs as {start.label}")
        if not start.options.rolling or (start.options.steps or 1) == 1:
            calls = self._tuned_models(bench, start, directory)
            best = self._chosen(bench, start, names)
        else:
            best = self._chosen(bench, start, names)
            calls = self._tuned_models(bench, best, directory)
        if not self._is_late():
            best, why = search.choose_filter(bench, best)
            self.says(why)
        # Never left out: PyTorch's threads that wait can take half of the speed of a model in another runtime.
        has_codec = bool(self.sink_suffix) or Path(self.source).is_file()
        best = search.choose_threads(bench, best, has_codec)
        self.says(f"chosen: {best.label}")
        return best, calls

    def _is_late(self) -> bool:
        return self.elapsed_s() > self.ends

    def _chosen(self, bench: Bench, start: Setting, names: Sequence[str | None]) -> Setting:
        """Return the setting with the steps and the sampler that fit the goal."""
        if self.goal.frame_budget_s is None:
            return search.choose_fastest(bench, start, names, self._is_late)
        return search.choose_best(bench, start, names, self.goal.frame_budget_s, self._is_late)

    def _tuned_models(self, bench: Bench, setting: Setting, directory: Path) -> list[TunedCall]:
        """Tune the models inside the stream, and let the artefacts stand for them from now on."""
        opened = open_target(self.target, setting.options)
        replacements = Replacements(opened.model.step)
        if not replacements.names:
            self.says("the stream's step names no models (it has no call_modules and wrap): none is tuned")
            return []
        captured = capture(opened, replacements, bench.clips, setting.options)
        whole = sum(one.seconds for one in captured)
        # A step that is opened anew has nothing in the place of its models, and can be handed to another process.
        judged = JudgedStream(open_target(self.target, setting.options), setting.options, bench.clips)
        found = []
        for one in captured:
            budget_s = self.goal.budget_s * _MODELS_SHARE * one.seconds / whole
            call = tune_call(
                one,
                judged,
                out=directory / _SEARCHES / _slug(one.name),
                budget_s=budget_s,
                max_drop=self.goal.max_drop,
                exclude=self.goal.exclude,
                on_busy=self.goal.on_busy,
                busy_wait_s=max(0.0, self.patience.left_s),
                listener=self.listener.tuning(one.name, budget_s),
            )
            found.append(call)
            self.says(f"{one.name}: {call.recipe}" + (f" ({call.reason})" if call.reason else ""))
            if call.directory is not None:
                bench.models[one.name] = (load(call.directory), call.shapes)
        return found

    def _proved(
        self,
        bench: Bench,
        original: Setting,
        best: Setting,
        calls: Sequence[TunedCall],
        clips: Clips,
        directory: Path,
        scratch: Path,
    ) -> StreamTuning:
        """Judge original and best on unseen clips, measure them in pairs, and write the one that is kept."""
        models = {
            call.name: TunedModel(directory=_place(call.name), shapes=call.shapes) for call in calls if call.directory
        }
        recipes = {call.name: call.recipe for call in calls}
        for call in calls:
            if call.directory is not None:
                shutil.copytree(call.directory, directory / _place(call.name), dirs_exist_ok=True)
        best, old_figures, new_figures, moved = self._on_unseen(bench, original, best, clips.reported_on)
        old, new = Finalist("original", original, {}), Finalist("best", best, models)
        claim = self._claim(old, new, directory, scratch)
        original_point = Point(label=original.label, figures=old_figures)
        best_point = Point(label=best.label, models=recipes, figures=new_figures)
        common = {"target": self.target, "source": self.source, "max_drop": self.goal.max_drop}
        if self.goal.frame_budget_s is None:
            result = by_speed(original_point, best_point, claim, moved, self.patience, common)
        else:
            runs = [
                budget_run(opened, setting, self.source, self.goal.frame_budget_s)
                for opened, setting in (
                    (open_target(self.target, original.options), original),
                    (bench.open(best), best),
                )
            ]
            result = by_budget(original_point, best_point, claim, runs, self.goal.frame_budget_s, common)
        kept = new if result.verdict == "gain" else old
        write_finalist(directory, self.target, kept)
        if kept is old:
            shutil.rmtree(directory / _MODELS, ignore_errors=True)
        return result

    def _on_unseen(
        self, bench: Bench, original: Setting, best: Setting, clips: Sequence[Clip]
    ) -> tuple[Setting, Figures, Figures, Change]:
        """Judge the best on clips that the search has not seen, beside the original.

        Where it does not keep the quality there, its models with the original's steps and sampler may; and with its
        batch, where they take a batch of any size.

        Returns:
            The setting that goes to the proof, the original's quality, its own, and how they compare.
        """
        before = answers(open_target(self.target, original.options), clips, original.options)
        judged = with_truth(clips, before)
        old = measured(judged, before)

        def judge(setting: Setting) -> tuple[Figures, Change]:
            figures = measured(judged, answers(bench.open(setting), judged, setting.options))
            return figures, change(old, figures, self.goal.max_drop)

        figures, moved = judge(best)
        options = original.options
        takes_any_batch = all(shape[0] is None for _, shapes in bench.models.values() for _, shape in shapes)
        rolling = options.rolling and takes_any_batch
        slower = best.changed(steps=options.steps, sampler=options.sampler, rolling=rolling)
        if moved.is_same or self.goal.frame_budget_s is not None or not bench.models or slower == best:
            return best, old, figures, moved
        self.says(f"on unseen frames, {best.label} is not as good: {'; '.join(moved.reasons)}")
        others, instead = judge(slower)
        if not instead.is_same:
            return best, old, figures, moved
        self.says(f"chosen instead: {slower.label}")
        return slower, old, others, instead

    def _claim(self, old: Finalist, new: Finalist, directory: Path, scratch: Path) -> Claim | None:
        """Compare the two in pairs; None where they are the same."""
        if old.setting == new.setting and not new.models:
            return None
        places = {}
        for finalist in (old, new):
            places[finalist.name] = scratch / f"{finalist.name}-stream"
            places[finalist.name].mkdir()
            if finalist.models:
                shutil.copytree(directory / _MODELS, places[finalist.name] / _MODELS)
            write_finalist(places[finalist.name], self.target, finalist)
        claims = compared(
            places["original"],
            [("best", places["best"])],
            others_of(old.setting),
            self.source,
            self.sink_suffix,
            scratch,
            patience=self.patience,
            limit=TimeLimit(self.goal.budget_s, 1.25 * self.goal.budget_s + 60.0, self.elapsed_s),
            report=self.listener.measured,
        )
        return claims[0]


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


def _place(name: str) -> str:
    return f"{_MODELS}/{_slug(name)}"
