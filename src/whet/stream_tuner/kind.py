"""Tune a stream of frames: what the tuner's kind for a stream does."""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from whet.artefact import load
from whet.comparison.claim import Claim
from whet.comparison.run import Run
from whet.comparison.schedules import Rounds, Schedule
from whet.comparison.variant import Variant
from whet.errors import OptionError, TargetError, WhetError
from whet.measure.stats import mean_interval
from whet.recipe import Recipe, Step
from whet.stream_tuner import plan
from whet.stream_tuner.clips import TUNING, Clip, Clips, clips_of_source
from whet.stream_tuner.denoiser import JudgedStream, TunedCall, capture, tune_call
from whet.stream_tuner.facts import StreamFacts, facts_of
from whet.stream_tuner.finals import Finalist, budget_run, others_of, write_finalist
from whet.stream_tuner.quality import Figures, answers, change, measured, with_truth
from whet.stream_tuner.settings import Bench, Setting
from whet.stream_tuner.sides import FRAMES, side
from whet.stream_tuner.techniques import STREAM_TABLE, TENTH, setting_of
from whet.streamer.replaced import Replacements
from whet.streamer.sources import open_source, refuse_live
from whet.streamer.stream import StreamOptions
from whet.streamer.target_name import is_tuned
from whet.streamer.targets import open_target
from whet.streamer.tuned import TunedModel, read_tuned
from whet.technique import AnyTechnique
from whet.techniques import TABLE
from whet.techniques.names import check_excluded
from whet.tuner.asked import Asked
from whet.tuner.kind import Kind, Work
from whet.tuner.kind_options import KindWord

_MODELS_SHARE = 0.5  # of the budget, for the models
_FINALS_SHARE = 0.25  # of the budget, kept for the proof
_LEAST_S = 60.0  # of the budget, from which models are tuned a second time
_CLIP_FRAMES = 48
_STRICTER = 0.1  # of the allowed drop, for models that are tuned a second time


class StreamKind(Kind):
    """Make a stream answer more frames of the same quality, or better ones within a time.

    Args:
        asked: What is asked for. The objective "quality" looks for the best quality within `within_s`.
        target: What `whet stream` takes.
        source: The frames that times are measured on.
        options: How the stream runs now.
        clips: Frames with their truth; None takes those of the source.
        sink_suffix: The suffix of a video that is written while times are measured; "" for none.
        within_s: Seconds that a frame may take, where the best quality is looked for.
    """

    word: ClassVar[KindWord] = "stream"
    table: ClassVar[Mapping[str, AnyTechnique]] = STREAM_TABLE
    schedule: ClassVar[Schedule] = Rounds(0)
    noise_from: ClassVar[Literal["original", "pairs"]] = "original"
    samples: ClassVar[bool] = False

    facts: StreamFacts

    def __init__(
        self,
        asked: Asked,
        target: str,
        source: str,
        options: StreamOptions,
        clips: Clips | None = None,
        sink_suffix: str = "",
        within_s: float | None = None,
    ) -> None:
        super().__init__(asked)
        self.goal = replace(asked.goal, objective="throughput" if within_s is None else "quality")
        self._target, self._source, self._options = target, source, options
        self._given, self._sink_suffix, self._within_s = clips, sink_suffix, within_s
        self._tuned: dict[str, list[TunedCall]] = {}  # by the key of what was tuned

    def check(self) -> None:
        """Check the options, and that the stream is not a tuned one."""
        check_excluded(self.asked.exclude, list(TABLE))
        if self._options.budget_s is not None:
            raise OptionError("a stream is tuned to a budget by frame_budget_s (--frame-budget)")
        if is_tuned(Path(self._target)):
            raise TargetError(f"{self._target} is a tuned stream already; tune {read_tuned(Path(self._target)).target}")

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        """Hold a directory for what nobody keeps."""
        self.work = work
        with tempfile.TemporaryDirectory(prefix="whet-stream-") as scratch:
            self._scratch = Path(scratch)
            yield

    def examine(self) -> StreamFacts:
        """Run the stream as it is on its clips."""
        began = time.monotonic()
        opened = open_target(self._target, self._options)
        self.original = Setting(replace(self._options, steps=opened.model.steps, sampler=opened.sampler))
        if self._given is not None:  # else the clips are read from the source, which is refused then
            with open_source(self._source, size=opened.size) as source:
                refuse_live(source, TUNING)
        self._clips = self._given or clips_of_source(self._source, opened.size, _CLIP_FRAMES)
        found = answers(opened, self._clips.chosen_on, self.original.options)
        judged = with_truth(self._clips.chosen_on, found)
        self._own = measured(judged, found)
        self._bench = Bench(self._target, self._source, self._sink_suffix, judged, self._scratch)
        has_codec = bool(self._sink_suffix) or Path(self._source).is_file()
        facts = facts_of(self._target, opened, self.original, self._clips.chosen_on, self._own, has_codec=has_codec)
        self.facts = facts.model_copy(update={"examined_s": time.monotonic() - began, "exclude": self.asked.exclude})
        return self.facts

    def measure_original(self) -> None:
        """Time the stream as it is."""
        self._own_s, _ = self.work.patience.measure(lambda: self._bench.timed(self.original), lambda found: found[1])

    def title(self) -> str:
        """Return the study's name, with a digest of the stream and its clips."""
        within = "" if self._within_s is None else f" within {self._within_s:g} s"
        return f"whet stream {self._target} {self.goal.max_drop}{within} {self.facts.weights} {self.facts.fingerprint}"

    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        """Keep a quarter of the budget for the proof. Threads are decided on whatever the time."""
        self._directory = directory
        budget = self.work.budget
        now = budget.clock()
        ends = now + budget.left_s - _FINALS_SHARE * budget.seconds
        return SearchTime(ends, now + budget.left_at_most_s, 0.0, budget.clock)

    @property
    def space(self) -> Space:
        """Return what can be changed of the stream."""
        return Space(self.facts.applicable, STREAM_TABLE)

    @property
    def choices(self) -> plan.Choices:
        """Return what is decided on by trials."""
        return self.facts.choices(self.original, self._within_s)

    def next_recipe(self, records: Sequence[TrialRecord], *, with_reference: bool) -> Recipe | None:
        """Return what is decided on next."""
        return plan.next_recipe(self.choices, records)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        """Judge a setting on the clips to choose on, and time it."""
        began, steps = time.monotonic(), recipe.steps
        record = TrialRecord(number=number, steps=steps, status="failed", fingerprint=self.facts.fingerprint)
        setting = setting_of(self.original, steps)
        try:
            notes = self._with_models(setting, steps)
            figures = self._bench.judged(setting)
            seconds, busy = self._bench.timed(setting)
        except WhetError as error:
            return record.model_copy(update={"reason": str(error), "seconds": time.monotonic() - began})
        moved = change(self._own, figures, self.goal.max_drop)
        why, cause = "", None
        if self._within_s is None and not moved.is_same:
            why, cause = "; ".join(moved.reasons), "quality"
        elif self._within_s is not None and seconds > self._within_s:
            why, cause = f"a frame takes {duration(seconds)}, and {duration(self._within_s)} is allowed", "slowdown"
        return record.model_copy(
            update={
                "status": "rejected" if why else "done",
                "reason": why,
                "rejected_for": cause,
                "notes": notes,
                "latency_ms": seconds * 1e3,
                "baseline_latency_ms": self._own_s * 1e3,
                "speedup": self._own_s / seconds,
                "speedup_ci95": None,
                "busy": busy,
                "quality": figures.ssim,
                "drop": moved.drop,
                "stream": figures_of(figures),
                "seconds": time.monotonic() - began,
            }
        )

    def _with_models(self, setting: Setting, steps: Sequence[Step]) -> tuple[str, ...]:
        """Let the artefacts that a recipe asks for stand for the models. They are tuned first, where they are not.

        Models are tuned for the shapes that they get: in a rolling batch, for so many steps.
        """
        wanted = next((one for one in steps if one.technique == "tuned_models"), None)
        self._bench.models.clear()
        if wanted is None:
            return ()
        calls = self._calls(setting, str(wanted.options["drop"]))
        for call in calls:
            if call.directory is not None:
                self._bench.models[call.name] = (load(call.directory), call.shapes)
        return tuple(f"{call.name}: {call.recipe}" + (f" ({call.reason})" if call.reason else "") for call in calls)

    def _calls(self, setting: Setting, drop: str) -> list[TunedCall]:
        """Return what tuning the models for a setting gave. A search that ended in this directory is read again."""
        options = setting.options
        key = f"{drop}-{options.steps}" if options.rolling and (options.steps or 1) > 1 else drop
        if key not in self._tuned:
            left_s = self.work.budget.left_s - _FINALS_SHARE * self.asked.budget_s
            budget_s = max(_LEAST_S, min(_MODELS_SHARE * self.asked.budget_s, left_s))
            max_drop = self.goal.max_drop * (_STRICTER if drop == TENTH else 1.0)
            self._tuned[key] = self._tuned_models(setting, self._directory / _SEARCHES / key, budget_s, max_drop)
        return self._tuned[key]

    def _tuned_models(self, setting: Setting, out: Path, budget_s: float, max_drop: float) -> list[TunedCall]:
        """Tune the models inside the stream, one after the other, each for its share of the time."""
        opened = open_target(self._target, setting.options)
        captured = capture(opened, Replacements(opened.model.step), self._bench.clips, setting.options)
        whole = sum(one.seconds for one in captured)
        # A step that is opened anew has nothing in the place of its models, and can be handed to another process.
        judged = JudgedStream(open_target(self._target, setting.options), setting.options, self._bench.clips)
        return [
            tune_call(
                one,
                judged,
                out=out / _slug(one.name),
                budget_s=budget_s * one.seconds / whole,
                max_drop=max_drop,
                exclude=self.asked.exclude,
                on_busy=str(self.work.patience.on_busy),
                busy_wait_s=max(0.0, self.work.patience.left_s),
                listener=self.work.listener.tuning(one.name, budget_s * one.seconds / whole),
            )
            for one in captured
        ]

    def finalists(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return what the trials decide for; nothing where that is the stream as it is."""
        best = plan.chosen(self.choices, records)
        return [record for record in records if best.steps and record.key == best.key][:1]

    def instead(self, records: Sequence[TrialRecord], finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return what may be as good as the stream as it was, where the best was not on frames that it had not seen."""
        if self._within_s is not None or not finalists:
            return []
        found = []
        for recipe in plan.instead(self.choices, Recipe(steps=finalists[0].steps)):
            known = next((record for record in records if record.key == recipe.key), None)
            if known is None and self.work.budget.left_s < _LEAST_S:
                self.work.listener.known("no time is left to try other models; a larger --budget has it")
                break
            record = known or self.attempt(len(records) + len(found), recipe, self.work.budget.left_s)
            if known is None:
                self.work.listener.tried(record)
            found.append(record)
        return [record for record in found if record.status == "done"]

    def side(self, record: TrialRecord | None) -> Variant:
        """Return the stream as it is, or with a recipe, as a tuned stream of its own."""
        name = ORIGINAL if record is None else f"trial-{record.number}"
        if name not in self._sides:
            place = self._scratch / f"{name}-stream"
            place.mkdir()
            self._write_stream(place, () if record is None else record.steps)
            others = others_of(self.original)
            self._sides[name] = side(name, place, others, self._source, self._sink_suffix, self._scratch)
        return self._sides[name]

    def _write_stream(self, directory: Path, steps: Sequence[Step]) -> None:
        """Write the stream with a recipe as what `whet stream` takes, with its artefacts."""
        setting, models = setting_of(self.original, tuple(steps)), dict[str, TunedModel]()
        wanted = next((one for one in steps if one.technique == "tuned_models"), None)
        for call in self._calls(setting, str(wanted.options["drop"])) if wanted is not None else ():
            if call.directory is not None:
                place = f"{_MODELS}/{_slug(call.name)}"
                shutil.copytree(call.directory, directory / place, dirs_exist_ok=True)
                models[call.name] = TunedModel(directory=place, shapes=call.shapes)
        write_finalist(directory, self._target, Finalist("", setting, models))

    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        """Return the point of the stream as it is. A call is so many frames."""
        seconds = [run.seconds / FRAMES for run in runs] or [self._own_s]
        return MeasuredVariant(
            latency_ms=statistics.median(seconds) * 1e3,
            throughput_per_s=1 / statistics.median(seconds),
            peak_bytes=max((run.peak_bytes for run in runs), default=0),
            size_bytes=0,
            quality=self._own.ssim,
            process_latencies_ms=[one * 1e3 for one in seconds] if runs else [],
            noise=noise_floor([[run.seconds for run in runs]]) if len(runs) > 1 else 1.0,
            stream=figures_of(self._own),
        )

    def point(self, record: TrialRecord, claim: Claim, baseline: MeasuredVariant) -> MeasuredVariant:
        """Return a finalist's point."""
        seconds = statistics.median(claim.new_s) / FRAMES
        point = MeasuredVariant(
            steps=record.steps,
            label=record.label,
            number=record.number,
            latency_ms=seconds * 1e3,
            throughput_per_s=1 / seconds,
            peak_bytes=max(new.peak_bytes for _, new in claim.pairs),
            size_bytes=0,
            quality=record.quality,
            stream=record.stream,
        )
        point = with_claim(point, claim)
        return point.model_copy(update={"process_latencies_ms": [one * 1e3 / FRAMES for one in claim.new_s]})

    def is_owed(self, steps: Sequence[Step]) -> bool:
        """Return that each recipe owes its quality on clips that the search has not seen."""
        return bool(steps)

    def prove(self, point: MeasuredVariant, baseline: MeasuredVariant) -> None:
        """Judge a point on clips that the search has not seen."""
        setting = self._with_recipe(point.steps)
        if self._unseen is None:
            before = answers(open_target(self._target, self.original.options), self._clips.reported_on, self.original.options)
            self._unseen = with_truth(self._clips.reported_on, before)
            self._before = measured(self._unseen, before)
            baseline.quality, baseline.stream = self._before.ssim, figures_of(self._before)
        figures = self._bench.judged(setting, self._unseen)
        moved = change(self._before, figures, self.goal.max_drop)
        point.quality, point.stream = figures.ssim, figures_of(figures)
        self._moved[point.label] = moved
        point.doubt = "" if moved.is_same else f"on unseen clips {'; '.join(moved.reasons)}"

    def _with_recipe(self, steps: Sequence[Step]) -> Setting:
        """Return the setting of a recipe, with its models in the place of the stream's own from now on."""
        setting = setting_of(self.original, tuple(steps))
        self._with_models(setting, steps)
        return setting

    def is_proved(self, point: MeasuredVariant) -> bool:
        """Return whether a point is as good as the stream was, on clips that the search has not seen."""
        moved = self._moved.get(point.label)
        return moved is not None and (self._within_s is not None or moved.is_same)
