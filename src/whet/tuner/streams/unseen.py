"""Judge recipes of a stream on clips that the search has not seen, and under the time that a frame may take."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from whet.errors import WhetError
from whet.measure.stats import mean_interval
from whet.streamer.targets import open_target
from whet.tuner.result import MeasuredVariant
from whet.tuner.streams.clips import Clip
from whet.tuner.streams.finals import budget_run
from whet.tuner.streams.models import StreamModels
from whet.tuner.streams.quality import Change, Figures, answers, change, measured, with_truth
from whet.tuner.streams.techniques import setting_of
from whet.ui.figures import duration


@dataclass
class UnseenJudge:
    """Judge points on clips that the search has not seen.

    Attributes:
        within_s: Seconds that a frame may take; None where no time is asked for.
        figures: The quality of each point, by its label.
        moved: That quality beside the original's, by the label of the point.
        late: The share of late frames, by the label of the point.
    """

    models: StreamModels
    clips: Sequence[Clip]
    within_s: float | None = None
    figures: dict[str, Figures] = field(default_factory=dict)
    moved: dict[str, Change] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    _own: Figures | None = None
    _with_truth: Sequence[Clip] = ()

    def own(self) -> Figures:
        """Return the quality of the stream as it was."""
        if self._own is None:
            bench, options = self.models.bench, self.models.original.options
            found = answers(open_target(bench.target, options), self.clips, options)
            self._with_truth = with_truth(self.clips, found)
            self._own = measured(self._with_truth, found)
        return self._own

    def judge(self, point: MeasuredVariant) -> None:
        """Note the quality of a point. One that fails is not the same."""
        before, setting = self.own(), setting_of(self.models.original, point.steps)
        try:
            self.models.place(setting, point.steps)
            figures = self.models.bench.judged(setting, self._with_truth)
            moved = change(before, figures, self.models.max_drop)
        except WhetError as error:
            figures, moved = before, Change(1.0, (1.0, 1.0), (f"it fails: {error}",))
        point.quality, point.stream = figures.ssim, figures.summary(is_same=moved.is_same)
        self.figures[point.label], self.moved[point.label] = figures, moved

    def keep_time(self, point: MeasuredVariant, baseline: MeasuredVariant) -> None:
        """Run a point and the original under the time that a frame may take, and note whether they keep it."""
        assert self.within_s is not None
        for one in (baseline, point):
            if not one.budget:
                setting, bench = setting_of(self.models.original, one.steps), self.models.bench
                self.models.place(setting, one.steps)
                run = budget_run(bench.open(setting), setting, bench.source, self.within_s)
                one.p99_ms = run.frame.p99 * 1e3 if run.frame is not None else None
                one.budget = str(run.verdict or "")
                self.late[one.label] = run.late_share or 0.0
                if one is point and one.budget == "inconclusive":
                    one.doubt = f"whether it keeps {duration(self.within_s)} a frame is open, as {run.busy}"

    def gained(self, point: MeasuredVariant) -> tuple[float, float]:
        """Return the interval of what a point gains in similarity, frame by frame."""
        pairs = zip(self.figures[point.label].ssim_by_frame, self.own().ssim_by_frame, strict=True)
        gained = [new - old for new, old in pairs]
        return mean_interval(gained) if len(gained) > 1 else (gained[0], gained[0])
