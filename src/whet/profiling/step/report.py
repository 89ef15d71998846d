"""Hold the report of `whet.watch` and `whet profile --step`: a verdict, its evidence, and the time of each phase."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whet.measure.source_location import UNKNOWN
from whet.measure.stats import percentile
from whet.profiling.bounds import Bound
from whet.profiling.step.growth import Growth, growth
from whet.profiling.step.log import NUM_WARM_UP, StepLog, StepRecord
from whet.profiling.step.phases import Phase
from whet.profiling.step.verdict import LEAST_STEPS, Facts, advice, judge, split_steps
from whet.ui.figures import MIN_SAMPLES_FOR_P99, count, digits, percent
from whet.ui.notebook import Shown

ORDER = (
    *(Phase.DATA, Phase.TRANSFER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.SYNC, Phase.COMMUNICATION),
    Phase.REST,
)
_WIDTH = 78
_MOST_SITES = 3
_ABSENT = {
    Phase.DATA: "no DataLoader was iterated",
    Phase.TRANSFER: "no copy to the device was seen",
    Phase.FORWARD: "the model was not called",
    Phase.BACKWARD: "no backward pass was seen",
    Phase.OPTIMIZER: "no optimiser made a step",
    Phase.SYNC: "no call that waits was seen",
}


@dataclass(frozen=True)
class PhaseTime:
    """Describe the mean time of a phase per step. Shares are of the step, 0 to 1.

    Attributes:
        name: The phase's name, as "data wait".
        ms: Milliseconds on the host's clock; None, as `share`, if the phase was not seen.
        calls: How often the phase was entered per step.
        gpu_ms: Milliseconds on the GPU's clock; None, as `gpu_share`, without a GPU.
        absent: Why the phase was not seen.
    """

    name: str
    ms: float | None
    share: float | None
    calls: float
    gpu_ms: float | None = None
    gpu_share: float | None = None
    absent: str = ""


@dataclass(frozen=True)
class Site:
    """Describe a line of the user's code that synchronises, communicates or copies to the GPU, with means per step.

    Attributes:
        line: The line as "file:number (function)"; "" if it is unknown.
        call: What the line calls, as "Tensor.item".
    """

    phase: str
    line: str
    call: str
    ms: float
    calls: float


@dataclass(frozen=True)
class StepReport(Shown):
    """Describe where the steps of a training loop go. Times are means per step, in milliseconds, after the warm-up.

    Attributes:
        verdict: MEMORY_GROWING if memory grows; otherwise the same as `bound`, or TOO_FEW_STEPS.
        bound: What bounds the time; None with too few steps.
        evidence: Sentences; the first explains the verdict.
        num_steps: How many steps were seen.
        num_counted: How many steps the figures are from.
        p99_ms: The 99th percentile; None with too few steps.
        loss_ms: The part of the rest that lies between forward and backward.
        ended_by: What cut the run short, or "".
        busy: What disturbed the steps on a busy machine, or "".
        num_unfinished: How many backward passes no optimiser's step followed.
        sites: The lines that synchronise, communicate or copy to the GPU for the longest time.
        overlapped_ms: The time in which communication ran beside other work; the phase "communication" is what the
            steps waited for. None where there was none, or on a GPU.
    """

    verdict: Bound
    bound: Bound | None
    evidence: tuple[str, ...]
    advice: str
    num_steps: int
    num_counted: int
    phases: tuple[PhaseTime, ...]
    step_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    first_step_ms: float | None = None
    batches_per_step: float | None = None
    loss_ms: float = 0.0
    device: str = "cpu"
    is_partial: bool = False
    ended_by: str = ""
    busy: str = ""
    num_unfinished: int = 0
    sites: tuple[Site, ...] = ()
    memory: tuple[Growth, ...] = ()
    overlapped_ms: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the verdict and the first sentence of its evidence."""
        return f"{self.verdict}: {self.evidence[0]}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}

    def notes(self) -> list[str]:
        """Return what else the reader must know to judge the figures."""
        notes = list(self.remarks)
        if self.num_counted < self.num_steps:
            apart = self.num_steps - self.num_counted
            first = f", the first of {digits(self.first_step_ms)} ms," if self.first_step_ms else ""
            notes.append(f"the first {apart} of {self.num_steps} steps{first} are warm-up and not counted")
        if self.num_unfinished:
            left = f"{self.num_unfinished} time{'s' * (self.num_unfinished > 1)}"
            notes.append(f"{left} a backward pass was not followed by an optimiser's step; it is not counted")
        if self.batches_per_step is not None and self.batches_per_step > 1.05:
            notes.append(f"{count(self.batches_per_step)} batches make one step (gradient accumulation)")
        if self.loss_ms and self.step_ms and self.loss_ms >= 0.01 * self.step_ms:
            notes.append(f"{digits(self.loss_ms)} ms of the rest are between forward and backward: this is the loss")
        if self.overlapped_ms is not None:
            notes.append(f"beside other work, communication runs for {digits(self.overlapped_ms)} ms a step")
        return notes

    def __str__(self) -> str:
        lines = textwrap.wrap(self.sentence, _WIDTH)
        partial = [f"partial: the loop ended early ({self.ended_by}); the steps before that were measured"]
        for sentence in (*self.evidence[1:], self.advice, *(partial if self.is_partial else ()), *self.notes()):
            lines += textwrap.wrap(sentence, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        lines.append("")
        on_gpu = any(phase.gpu_ms is not None for phase in self.phases)
        lines.append(f"{'phase':<17}{'ms a step':>10}{'share':>8}{'calls':>8}{'  on the GPU, ms' if on_gpu else ''}")
        lines += [_row(phase, on_gpu) for phase in self.phases]
        if self.step_ms is not None:
            lines.append(f"{'step':<17}{digits(self.step_ms):>10}{'100%':>8}")
        return "\n".join(lines)


def summarize(log: StepLog) -> StepReport:
    sums, warm_up = log.sums, list(log.warm_up)
    records = list(sums.sample)
    enough = sums.num_steps >= LEAST_STEPS
    if not records:  # show the warm-up, without a verdict, rather than nothing
        records = warm_up
    num_counted = sums.num_steps or len(warm_up)
    device = list(log.device_sums.sample) if enough else []
    trends = tuple(t for s in log.memory if (t := growth(s.source, list(s.points))) is not None)
    sites = _sites(log, max(1, num_counted))
    facts = Facts(log.loader_facts, lambda phase: _site_in_words(sites, phase), trends, bool(device))
    if enough:
        verdict, bound, evidence = judge(split_steps(device or records), facts)
    else:
        verdict, bound, evidence = Bound.TOO_FEW_STEPS, None, [_too_few(log)]
    seconds = [record.seconds for record in records]
    return StepReport(
        verdict=verdict,
        bound=bound,
        evidence=tuple(evidence),
        advice=advice(verdict, facts),
        num_steps=log.num_steps,
        num_counted=num_counted,
        phases=_phases(log, records, num_counted, device) if records else (),
        step_ms=sum(_totals(log, records)[0]) / num_counted / 1e6 if records else None,
        p50_ms=percentile(seconds, 50) * 1e3 if records else None,
        p90_ms=percentile(seconds, 90) * 1e3 if records else None,
        p99_ms=percentile(seconds, 99) * 1e3 if len(seconds) >= MIN_SAMPLES_FOR_P99 else None,
        first_step_ms=warm_up[0].seconds * 1e3 if warm_up else None,
        batches_per_step=sum(r.num_batches for r in records) / len(records) if records else None,
        loss_ms=sum(r.loss_ns for r in records) / len(records) / 1e6 if records else 0.0,
        device=log.device or "cpu",
        is_partial=bool(log.ended_by),
        ended_by=log.ended_by,
        num_unfinished=log.num_unfinished,
        sites=sites,
        memory=trends,
        overlapped_ms=_overlapped_ms(log, num_counted),
    )


def _phases(
    log: StepLog, records: Sequence[StepRecord], num_counted: int, device: Sequence[StepRecord]
) -> tuple[PhaseTime, ...]:
    ns, calls = _totals(log, records)
    whole_ns = sum(ns) or 1
    gpu_ns = log.device_sums.ns if device else None
    rows = []
    for phase in ORDER:
        gpu_ms = gpu_ns[phase] / log.device_sums.num_steps / 1e6 if gpu_ns else None
        gpu_share = gpu_ns[phase] / (sum(gpu_ns) or 1) if gpu_ns else None
        if not calls[phase] and phase is Phase.COMMUNICATION:
            continue
        if not calls[phase] and phase is not Phase.REST:
            rows.append(PhaseTime(phase.label, None, None, 0.0, absent=_why_absent(phase, log)))
            continue
        ms = ns[phase] / num_counted / 1e6
        rows.append(PhaseTime(phase.label, ms, ns[phase] / whole_ns, calls[phase] / num_counted, gpu_ms, gpu_share))
    return tuple(rows)


def _overlapped_ms(log: StepLog, num_counted: int) -> float | None:
    return log.communication.overlapped_ms(num_counted) if log.sums.calls[Phase.COMMUNICATION] else None


def _totals(log: StepLog, records: Sequence[StepRecord]) -> tuple[list[int], list[int]]:
    """Return exact nanoseconds and calls by phase. If only warm-up steps were seen, these are counted."""
    if log.sums.num_steps:
        return list(log.sums.ns), list(log.sums.calls)
    return (
        [sum(record.ns[phase] for record in records) for phase in Phase],
        [sum(record.calls[phase] for record in records) for phase in Phase],
    )


def _why_absent(phase: Phase, log: StepLog) -> str:
    if phase is Phase.TRANSFER and log.device in (None, "cpu"):
        return "nothing to copy: the model is on a CPU"
    return _ABSENT[phase]


def _sites(log: StepLog, num_steps: int) -> tuple[Site, ...]:
    """Return the lines that take longest, at most three for each phase."""
    ranked = sorted(log.clock.sites.items(), key=lambda item: -item[1][0])
    sites = []
    for phase in (Phase.SYNC, Phase.TRANSFER, Phase.COMMUNICATION):
        mine = [(key, counted) for key, counted in ranked if key[0] == phase][:_MOST_SITES]
        for (_, line, call), (ns, calls) in mine:
            where = "" if line == UNKNOWN else str(line)
            sites.append(Site(phase.label, where, call, ns / num_steps / 1e6, calls / num_steps))
    return tuple(sites)


def _site_in_words(sites: Sequence[Site], phase: Phase) -> str:
    found = next((site for site in sites if site.phase == phase.label), None)
    if found is None:
        return ""
    return f"{found.call}{f' at {found.line}' if found.line else ''} takes {digits(found.ms)} ms a step"


def _too_few(log: StepLog) -> str:
    wanted = NUM_WARM_UP + LEAST_STEPS
    if log.num_steps:
        return f"{log.num_steps} steps were seen; at least {wanted} are needed to tell what bounds the loop"
    if log.num_stepped:
        return f"{wanted} steps are needed; the optimiser made {log.num_stepped}, and none was seen from start to end"
    return f"{wanted} steps are needed; no optimiser made a step while the loop was watched"


def _row(phase: PhaseTime, on_gpu: bool) -> str:
    if phase.ms is None or phase.share is None:
        return f"{phase.name:<17}{'–':>10}  {textwrap.shorten(phase.absent, _WIDTH - 29, placeholder=' …')}"
    row = f"{phase.name:<17}{digits(phase.ms):>10}{percent(phase.share, decimals=1):>8}{count(phase.calls):>8}"
    return row + (f"{digits(phase.gpu_ms):>16}" if on_gpu and phase.gpu_ms is not None else "")
