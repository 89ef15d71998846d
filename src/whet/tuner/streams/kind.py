"""Tune a stream of frames: what the tuner's kind for a stream does."""

import contextlib
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from whet.comparison.claim import Claim
from whet.comparison.run import Run
from whet.comparison.schedules import Rounds, Schedule
from whet.comparison.variant import Variant
from whet.core.recipe import Recipe, Step
from whet.errors import OptionError, TargetError, WhetError
from whet.streamer.sources import open_source, refuse_live
from whet.streamer.stream import StreamOptions
from whet.streamer.target_name import is_tuned
from whet.streamer.targets import open_target
from whet.streamer.tuned import read_tuned
from whet.techniques import TABLE
from whet.techniques.names import check_excluded
from whet.tuner.asked import Asked
from whet.tuner.budget import needed_for
from whet.tuner.finals import side_name
from whet.tuner.kind import Kind, Work
from whet.tuner.kind_options import KindWord
from whet.tuner.points import finalist_point, original_point
from whet.tuner.records import TrialRecord
from whet.tuner.report import write_report
from whet.tuner.result import MeasuredVariant, Result, UntriedTechnique
from whet.tuner.search import SearchTime
from whet.tuner.space import Space
from whet.tuner.streams import plan
from whet.tuner.streams.clips import TUNING, Clips, clips_of_source
from whet.tuner.streams.facts import StreamFacts, facts_of
from whet.tuner.streams.finals import others_of
from whet.tuner.streams.models import FINALS_SHARE, LEAST_S, StreamModels
from whet.tuner.streams.quality import answers, change, measured, with_truth
from whet.tuner.streams.report import render
from whet.tuner.streams.settings import Bench, Setting
from whet.tuner.streams.sides import FRAMES, side
from whet.tuner.streams.techniques import STREAM_TABLE, setting_of
from whet.tuner.streams.unseen import UnseenJudge
from whet.tuner.untried import TIME_UP
from whet.ui.figures import digits, duration, percent

_CLIP_FRAMES = 48


class StreamKind(Kind):
    """Make a stream answer more frames of the same quality, or better ones within `within_s` seconds of a frame.

    `asked` holds the goal and the budget; the other arguments are those of `tune_stream`.
    """

    word: ClassVar[KindWord] = "stream"
    schedule: ClassVar[Schedule] = Rounds(0)
    noise_from: ClassVar[Literal["original", "pairs"]] = "original"
    times_original_alone: ClassVar[bool] = False  # it was timed before the trials, and a process of its own takes long
    samples: ClassVar[bool] = False
    shares_finals: ClassVar[bool] = False  # a result is a directory of models, which lies with who measured it

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
        clips_name: str = "",
    ) -> None:
        super().__init__(asked)
        self.goal = replace(asked.goal, objective="throughput" if within_s is None else "quality")
        self.target = self.words = target
        self._source, self._options = source, options
        self._given, self._sink_suffix, self._within_s, self._clips_name = clips, sink_suffix, within_s, clips_name
        self._sides: dict[str, Variant] = {}

    def check(self) -> None:
        check_excluded(self.asked.exclude, list(TABLE))
        if self._options.budget_s is not None:
            raise OptionError("a stream is tuned to a budget by frame_budget_s (--frame-budget)")
        if is_tuned(Path(self.target)):
            raise TargetError(f"{self.target} is a tuned stream already; tune {read_tuned(Path(self.target)).target}")

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        self.work = work
        with tempfile.TemporaryDirectory(prefix="whet-stream-") as scratch:
            self._scratch = Path(scratch)
            yield

    def examine(self) -> StreamFacts:
        began = time.monotonic()
        opened = open_target(self.target, self._options)
        self.original = Setting(replace(self._options, steps=opened.model.steps, sampler=opened.sampler))
        if self._given is not None:  # else the clips are read from the source, which is refused then
            with open_source(self._source, size=opened.size) as source:
                refuse_live(source, TUNING)
        self._clips = self._given or clips_of_source(self._source, opened.size, _CLIP_FRAMES)
        found = answers(opened, self._clips.chosen_on, self.original.options)
        judged = with_truth(self._clips.chosen_on, found)
        self._own = measured(judged, found)
        self._bench = Bench(self.target, self._source, self._sink_suffix, judged, self._scratch)
        has_codec = bool(self._sink_suffix) or Path(self._source).is_file()
        facts = facts_of(self.target, opened, self.original, self._clips.chosen_on, self._own, has_codec=has_codec)
        self.facts = facts.model_copy(update={"examined_s": time.monotonic() - began, "exclude": self.asked.exclude})
        return self.facts

    def measure_original(self) -> None:
        self._own_s, _ = self.work.patience.measure(lambda: self._bench.timed(self.original), lambda found: found[1])

    def title(self) -> str:
        within = "" if self._within_s is None else f" within {self._within_s:g} s"
        on = f"{self._source} {self._sink_suffix or 'null'}{within}"
        return f"whet stream {self.target} {self.goal.max_drop} on {on} {self.facts.weights} {self.facts.fingerprint}"

    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        budget = self.work.budget
        self._models = StreamModels(self._bench, self.original, self.asked, self.goal.max_drop, self.work, directory)
        self.unseen = UnseenJudge(self._models, self._clips.reported_on, self._within_s)
        now = budget.clock()
        ends = now + budget.left_s - FINALS_SHARE * budget.seconds
        return SearchTime(ends, now + budget.left_at_most_s, 0.0, budget.clock)

    @property
    def space(self) -> Space:
        return Space(self.facts.applicable, STREAM_TABLE)

    @property
    def choices(self) -> plan.Choices:
        return self.facts.choices(self.original, self._within_s)

    def next_recipe(
        self, records: Sequence[TrialRecord], *, with_reference: bool, may_compile: bool = True
    ) -> Recipe | None:
        return plan.next_recipe(self.choices, records)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        began, steps = time.monotonic(), recipe.steps
        record = TrialRecord(number=number, steps=steps, status="failed", fingerprint=self.facts.fingerprint)
        setting = setting_of(self.original, steps)
        try:
            notes = self._models.place(setting, steps)
            began += self._models.last_s  # a search within is no guide to how long trials take
            if self._models.are_wanted(steps) and not self._bench.models:
                why = "; ".join(notes) or "the stream names no model that takes a tenth of the time"
                seconds = time.monotonic() - began
                return record.model_copy(
                    update={"status": "rejected", "reason": why, "notes": notes, "seconds": seconds}
                )
            figures = self._bench.judged(setting)
            # Only the timing is measured again on a busy machine, not a search within the trial.
            seconds, busy = self.work.patience.measure(lambda: self._bench.timed(setting), lambda found: found[1])
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
                "stream": figures.summary(is_same=moved.is_same),
                "seconds": time.monotonic() - began,
            }
        )

    def best_trial(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the trial that the plan decides for; None where that is the stream as it is."""
        best = plan.chosen(self.choices, records)
        found = next((record for record in records if best.steps and record.key == best.key), None)
        return found if found is not None and found.status == "done" else None

    def finalists(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        best = self.best_trial(records)
        return [best] if best is not None else []

    def instead(self, records: Sequence[TrialRecord], finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
        if self._within_s is not None or not finalists:
            return []
        found = list[TrialRecord]()
        for recipe in plan.instead(self.choices, Recipe(steps=finalists[0].steps)):
            known = next((record for record in records if record.key == recipe.key), None)
            if known is None and self.work.budget.left_s - FINALS_SHARE * self.asked.budget_s < LEAST_S:
                self.work.listener.known("no time is left to try other models; a larger --budget has it")
                break
            number = max(one.number for one in [*records, *found]) + 1
            record = known or self.attempt(number, recipe, self.work.budget.left_s)
            if known is None:
                self.work.listener.tried(record)
            found.append(record)
        return [record for record in found if record.status == "done"]

    def side(self, record: TrialRecord | None) -> Variant:
        name = side_name(record)
        if name not in self._sides:
            place = self._scratch / f"{name}-stream"
            place.mkdir()
            self._models.write(place, () if record is None else record.steps)
            others = others_of(self.original)
            self._sides[name] = side(name, place, others, self._source, self._sink_suffix, self._scratch)
        return self._sides[name]

    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        own = self.unseen.own()
        known: dict[str, Any] = {"quality": own.ssim, "stream": own.summary()}
        if not runs:
            return MeasuredVariant(
                latency_ms=self._own_s * 1e3, throughput_per_s=1 / self._own_s, peak_bytes=0, size_bytes=0, **known
            )
        return original_point(runs, 1.0, per_call=FRAMES, peak_bytes=max(run.peak_bytes for run in runs), **known)

    def point(self, record: TrialRecord, claim: Claim, baseline: MeasuredVariant) -> MeasuredVariant:
        peak_bytes = max(new.peak_bytes for _, new in claim.pairs)
        point = finalist_point(record, claim, per_call=FRAMES, peak_bytes=peak_bytes)
        self.unseen.judge(point)
        if self._within_s is not None:
            self.unseen.keep_time(point, baseline)
        return point

    def improves(self, point: MeasuredVariant, baseline: MeasuredVariant) -> bool:
        """Return whether a point answers more frames or, within a time, better ones."""
        if self._within_s is None:
            return super().improves(point, baseline)
        return point.budget == "held" and (baseline.budget != "held" or self.unseen.gained(point)[0] > 0)

    def is_owed(self, steps: Sequence[Step]) -> bool:
        """Return whether a recipe owes the same quality on clips that the search has not seen."""
        return bool(steps) and self._within_s is None

    def is_proved(self, point: MeasuredVariant) -> bool:
        return not self.is_owed(point.steps) or self.unseen.moved[point.label].is_same

    def is_disproved(self, point: MeasuredVariant) -> bool:
        return not self.is_proved(point)

    def is_unfinished(self, point: MeasuredVariant) -> bool:
        """Return that more time changes nothing: each point has been judged."""
        return False

    def why_open(self, point: MeasuredVariant) -> str:
        return f"on unseen clips {'; '.join(self.unseen.moved[point.label].reasons)}"

    def stays(self, points: Sequence[MeasuredVariant], baseline: MeasuredVariant) -> str:
        if self._within_s is None:
            return ""
        within = duration(self._within_s)
        if not points:
            return f"No gain: nothing that was tried is better within {within} a frame; the original stays."
        best = points[0]
        if best.budget != "held":
            late, p99_ms = percent(self.unseen.late[best.label]), best.p99_ms
            shown = "" if p99_ms is None else f": P99 {duration(p99_ms / 1e3)}, {late} late"
            return f"No gain: the best that was found misses {within} a frame{shown}; the original stays."
        word = "no better" if self.unseen.gained(best)[1] >= 0 else "worse"
        told = f"similarity {best.quality:.3f} beside {baseline.quality:.3f}"
        return f"No gain: the original keeps {within} a frame, and what was found is {word}: {told}."

    def gained(self, best: MeasuredVariant, baseline: MeasuredVariant, reference: MeasuredVariant | None) -> str:
        if self._within_s is not None:
            was = {"held": "keeps it too", "missed": "misses it"}.get(baseline.budget, "is open")
            better = f"similarity {best.quality or 0:.3f} beside {baseline.quality or 0:.3f}"
            p99 = "" if best.p99_ms is None else f"P99 {duration(best.p99_ms / 1e3)}; "
            within = duration(self._within_s)
            return f"{best.label} keeps {within} a frame, and the original {was}: {p99}{better}."
        low, high = best.speedup_ci95
        rates = f"{digits(best.throughput_per_s)} in place of {digits(baseline.throughput_per_s)} frames a second"
        return f"{best.label}: {best.speedup:.2f}x ({low:.2f}–{high:.2f}), {rates}, at the same quality."

    def untried(self, records: Sequence[TrialRecord]) -> list[UntriedTechnique]:
        """Return what the plan had no time for: nothing where all is decided."""
        if plan.next_recipe(self.choices, records) is None:
            return []
        tried = {one.technique for record in records for one in record.steps}
        rest = [name for name in self.space.techniques if name not in tried]
        return [UntriedTechnique(technique=name, bound=1.0, reason=TIME_UP) for name in rest]

    def needed_s(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> float:
        """Return twice the budget: how long the models' searches take is not known."""
        return needed_for(2 * self.asked.budget_s)

    def details(self, records: Sequence[TrialRecord], best: MeasuredVariant) -> dict[str, Any]:
        return {"source": self._source, "within_s": self._within_s}

    @property
    def options(self) -> dict[str, str]:
        own = self._options
        found = {
            "--steps": own.steps,
            "--source": self._source if self._source != "synthetic" else None,
            "--sink": self._sink_suffix or None,
            "--frame-budget": None if self._within_s is None else f"{self._within_s:g}s",
            "--sampler": own.sampler,
            "--prompt": own.prompt,
            "--data": self._clips_name or None,
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def save(self, result: Result, directory: Path) -> None:
        self._models.write(directory, result.best.steps)
        result.unsaved = f"what is kept is a stream: whet stream {shlex.quote(str(directory))}"

    def report(self, result: Result, directory: Path) -> None:
        write_report(result, directory / "report.html", render)
