"""Tune a stream from end to end: judge the original, tune its models, choose settings, prove, and write what was found.

The order depends on the goal. A model that works on one frame at a time takes the same shapes at any number of steps,
so it is tuned first, and the steps are chosen with it. In a rolling batch, the number of steps is the batch, so the
steps are chosen first.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from whet.artefact import load
from whet.comparison.claim import Claim
from whet.comparison.compare import TimeLimit
from whet.errors import OptionError, TargetError, WhetError
from whet.files import write_whole
from whet.measure.quiet import OnBusy, Patience
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
from whet.stream_tuner.goal import StreamGoal, StreamListener
from whet.stream_tuner.outcome import by_budget, by_speed
from whet.stream_tuner.quality import Change, Figures, answers, change, measured, with_truth
from whet.stream_tuner.result import RESULT, Point, StreamTuning
from whet.stream_tuner.search import Bench, Setting
from whet.streamer.replaced import Replacements
from whet.streamer.sources import open_source, refuse_live
from whet.streamer.stream import StreamOptions
from whet.streamer.target_name import is_tuned
from whet.streamer.targets import open_target
from whet.streamer.tuned import TunedModel, read_tuned
from whet.techniques import TABLE
from whet.techniques.names import check_excluded
from whet.tuner.preparation import checked_directory

_MODELS_SHARE = 0.5  # of the budget, for the models
_FINALS_SHARE = 0.25  # of the budget, kept for the proof
_LEAST_S = 60.0  # of the budget, from which models are tuned a second time
_CLIP_FRAMES = 48
_STRICTER = 0.1  # of the allowed drop, for models that are tuned a second time
_MODELS = "models"
_SEARCHES = "searches"


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
    check_excluded((goal or StreamGoal()).exclude, list(TABLE))
    if is_tuned(Path(target)):
        raise TargetError(f"{target} is a tuned stream already; tune {read_tuned(Path(target)).target}")
    run = _Run(target, source, options or StreamOptions(), goal or StreamGoal(), sink_suffix, listener)
    return run.tuned(clips, checked_directory(out, resume=False, has_own_study=True))


@dataclass(frozen=True)
class _Found:
    """Hold what goes to the proof, and its quality on clips that the search has not seen."""

    setting: Setting
    calls: Sequence[TunedCall]
    old: Figures
    new: Figures
    moved: Change


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
        if given is not None:  # else the clips are read from the source, which is refused then
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
                found = self._found(bench, original, clips.reported_on, directory)
                result = self._proved(bench, original, found, directory, Path(scratch))
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
        takes_a_row = not start.options.rolling or (start.options.steps or 1) == 1
        best = start if takes_a_row else self._chosen(bench, start, names)
        budget_s = self.goal.budget_s * _MODELS_SHARE
        calls = self._tuned_models(bench, best, directory / _SEARCHES, budget_s, self.goal.max_drop)
        if takes_a_row:
            best = self._chosen(bench, start, names)
        if not self._is_late():
            best, why = search.choose_filter(bench, best)
            self.says(why)
        # Never left out: PyTorch's threads that wait can take half of the speed of a model in another runtime.
        best = search.choose_threads(bench, best, self._has_codec)
        self.says(f"chosen: {best.label}")
        return best, calls

    @property
    def _has_codec(self) -> bool:
        return bool(self.sink_suffix) or Path(self.source).is_file()

    def _is_late(self) -> bool:
        return self.elapsed_s() > self.ends

    def _chosen(self, bench: Bench, start: Setting, names: Sequence[str | None]) -> Setting:
        """Return the setting with the steps and the sampler that fit the goal."""
        if self.goal.frame_budget_s is None:
            return search.choose_fastest(bench, start, names, self._is_late)
        return search.choose_best(bench, start, names, self.goal.frame_budget_s, self._is_late)

    def _tuned_models(
        self, bench: Bench, setting: Setting, out: Path, budget_s: float, max_drop: float
    ) -> list[TunedCall]:
        """Tune the models inside the stream, and let the artefacts stand for them from now on.

        Args:
            bench: Holds the clips.
            setting: How the stream runs.
            out: A directory for the searches' results.
            budget_s: Seconds for all models.
            max_drop: The allowed drop of the structural similarity, as a fraction.
        """
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
            of_this_s = budget_s * one.seconds / whole
            call = tune_call(
                one,
                judged,
                out=out / _slug(one.name),
                budget_s=of_this_s,
                max_drop=max_drop,
                exclude=self.goal.exclude,
                on_busy=self.goal.on_busy,
                busy_wait_s=max(0.0, self.patience.left_s),
                listener=self.listener.tuning(one.name, of_this_s),
            )
            found.append(call)
            self.says(f"{one.name}: {call.recipe}" + (f" ({call.reason})" if call.reason else ""))
            if call.directory is not None:
                bench.models[one.name] = (load(call.directory), call.shapes)
        return found

    def _proved(self, bench: Bench, original: Setting, found: "_Found", directory: Path, scratch: Path) -> StreamTuning:
        """Measure original and best in pairs, and write the one that is kept."""
        best, calls = found.setting, found.calls
        models = {
            call.name: TunedModel(directory=_place(call.name), shapes=call.shapes) for call in calls if call.directory
        }
        recipes = {call.name: call.recipe for call in calls}
        for call in calls:
            if call.directory is not None:
                shutil.copytree(call.directory, directory / _place(call.name), dirs_exist_ok=True)
        old, new = Finalist("original", original, {}), Finalist("best", best, models)
        claim = self._claim(old, new, directory, scratch)
        original_point = Point(label=original.label, figures=found.old)
        best_point = Point(label=best.label, models=recipes, figures=found.new)
        common = {"target": self.target, "source": self.source, "max_drop": self.goal.max_drop}
        if self.goal.frame_budget_s is None:
            result = by_speed(original_point, best_point, claim, found.moved, self.patience, common)
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

    def _found(self, bench: Bench, original: Setting, unseen: Sequence[Clip], directory: Path) -> "_Found":
        """Return the best that the search finds, judged on clips that it has not seen; or what is as good there."""
        best, calls = self._searched(bench, original, directory)
        found = self._on_unseen(bench, original, best, calls, unseen)
        if found.moved.is_same or self.goal.frame_budget_s is not None or not bench.models:
            return found
        self.says(f"on unseen frames, {best.label} is not as good: {'; '.join(found.moved.reasons)}")
        for setting, tuned in self._instead(bench, original, best, calls, directory / _SEARCHES / "again"):
            instead = self._on_unseen(bench, original, setting, tuned, unseen)
            if instead.moved.is_same:
                self.says(f"chosen instead: {setting.label}")
                return instead
            self.says(f"nor is {setting.label}: {'; '.join(instead.moved.reasons)}")
        return found

    def _instead(
        self, bench: Bench, original: Setting, best: Setting, calls: Sequence[TunedCall], out: Path
    ) -> Iterator[tuple[Setting, Sequence[TunedCall]]]:
        """Yield what may be as good as the stream as it was: its steps with these models, or others of less error."""
        own = original.options
        slower = best.changed(steps=own.steps, sampler=own.sampler, stillness=own.stillness)
        shapes = [shape for _, taken in bench.models.values() for _, shape in taken]
        is_taken = not slower.options.rolling or all(shape[0] is None for shape in shapes)
        if slower != best and is_taken:
            yield slower, calls
        left_s = self.ends - self.elapsed_s()
        if left_s >= _LEAST_S:
            bench.models.clear()
            tuned = self._tuned_models(bench, slower, out, left_s, _STRICTER * self.goal.max_drop)
            yield search.choose_threads(bench, slower.changed(threads=own.threads), self._has_codec), tuned
            return
        self.says("no time is left to tune the models again; a larger --budget has it")
        if not is_taken:
            yield slower.changed(rolling=False), calls

    def _on_unseen(
        self, bench: Bench, original: Setting, best: Setting, calls: Sequence[TunedCall], clips: Sequence[Clip]
    ) -> "_Found":
        """Judge a setting on clips that the search has not seen, and how it stands to the stream as it was."""
        before = answers(open_target(self.target, original.options), clips, original.options)
        judged = with_truth(clips, before)
        old = measured(judged, before)
        new = measured(judged, answers(bench.open(best), judged, best.options))
        return _Found(best, calls, old, new, change(old, new, self.goal.max_drop))

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
