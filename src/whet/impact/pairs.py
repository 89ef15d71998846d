"""Two versions of a training script against each other: processes in turn, and their losses side by side."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from whet.errors import TargetError
from whet.measure.isolate import Outcome
from whet.measure.load import Load, cause_of, quiet_blocks
from whet.measure.quiet import Patience
from whet.measure.stats import Comparison, compare

NUM_WARM_UP = 3  # steps of each process that fill caches and start workers
LOSS_TOLERANCE = 0.01  # of the mean loss; sums in another order move it by less than a hundredth of that
_LEAST_PAIRS = 3
_ENOUGH = 0.5  # of a process's steps have to be quiet
_TOO_LITTLE = 1.02  # after the least number of pairs: so small a gain would need dozens of them to be shown

Run = Callable[[], Outcome]


@dataclass(frozen=True)
class ScriptRun:
    """One process.

    Attributes:
        step_s: Median time of a quiet step after the warm-up.
        losses: By step; None where there was none.
        busy: What disturbed too many of the steps on a busy machine; "" for a quiet one.
    """

    step_s: float
    losses: tuple[float | None, ...]
    peak_bytes: int
    report: dict[str, Any]
    busy: str = ""


@dataclass(frozen=True)
class Paired:
    """What pairs of processes showed.

    Attributes:
        comparison: None where the variant failed or the machine stayed busy.
        failure: Why the variant could not be run.
        busy: Why there is no comparison on a busy machine.
    """

    comparison: Comparison | None
    loss_gap: float | None
    loss_note: str
    original: ScriptRun | None = None
    variant: ScriptRun | None = None
    failure: str = ""
    busy: str = ""

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval lies above 1. Where all is kept in the end, fresh pairs are what proves it."""
        return self.comparison is not None and self.comparison.ci95[0] > 1

    @property
    def same_loss(self) -> bool:
        return self.loss_gap is not None and self.loss_gap <= LOSS_TOLERANCE


def run_once(run: Run) -> ScriptRun:
    """One process. Raises TargetError, with what was wrong, where it gave no steps."""
    outcome = run()
    if outcome.value is None:
        assert outcome.failure is not None
        raise TargetError(outcome.failure.message)
    value = outcome.value
    seconds, busy = _quiet_steps(value["seconds"], value.get("blocks", ()))
    peak = max(value["cuda_peak_bytes"] or 0, 0) or value["peak_bytes"]
    return ScriptRun(statistics.median(seconds), tuple(value["losses"]), peak, value["report"], busy)


def _quiet_steps(seconds: Sequence[float], blocks: Sequence[Mapping[str, Any]]) -> tuple[Sequence[float], str]:
    """Return the times of the steps that count, and what disturbed too many of them."""
    loads = [Load(**block["load"]) for block in blocks]
    flags = [
        is_quiet for block, is_quiet in zip(blocks, quiet_blocks(loads), strict=True) for _ in range(block["num_steps"])
    ]
    flags += [True] * (len(seconds) - len(flags))
    warm = list(zip(seconds, flags, strict=True))[NUM_WARM_UP:] or [(seconds[-1], flags[-1])]
    quiet = [step_s for step_s, is_quiet in warm if is_quiet]
    if len(quiet) >= _ENOUGH * len(warm):
        return quiet, ""
    return [step_s for step_s, _ in warm], cause_of(loads)


def run_pairs(
    original: Run, variant: Run, *, most_pairs: int, stop_early: bool = True, patience: Patience | None = None
) -> Paired:
    """Pairs in the order AB BA AB ..., `most_pairs` of them; stop_early: or until it is clear whether it pays.

    What the original raises goes on; what the variant raises is its result. A process that was disturbed on a busy
    machine is run again as long as `patience` lasts; where it does not, there is no comparison.
    """
    patience = patience or Patience()
    first: list[ScriptRun] = []
    second: list[ScriptRun] = []

    def add(runs: list[ScriptRun], run: Run) -> None:
        runs.append(patience.measure(partial(run_once, run), lambda found: found.busy))

    for number in range(most_pairs):
        try:
            for runs, run in (
                ((second, variant), (first, original)) if number % 2 else ((first, original), (second, variant))
            ):
                add(runs, run)
        except TargetError as error:
            if len(first) > len(second):
                return Paired(None, None, "", first[-1], None, str(error))
            raise
        if not patience.goes_on and (first[-1].busy or second[-1].busy):
            return Paired(None, None, "", first[-1], second[-1], busy=patience.sentence)
        if stop_early and number + 1 >= _LEAST_PAIRS and _is_clear(first, second):
            break
        if stop_early and number == 1 and all(b.step_s > a.step_s * 1.02 for a, b in zip(first, second, strict=True)):
            break  # slower twice: not worth a third
    gap, note = compare_losses(first[0].losses, second[0].losses)
    return Paired(_compared(first, second), gap, note, _middle(first), _middle(second))


def compare_losses(original: Sequence[float | None], variant: Sequence[float | None]) -> tuple[float | None, str]:
    """How far the mean losses of the steps that both made are apart, relative, and that in words."""
    both = [(a, b) for a, b in zip(original, variant, strict=False) if a is not None and b is not None]
    if not both:
        return None, "no loss was seen: backward was called on nothing with one element"
    if not all(math.isfinite(value) for pair in both for value in pair):
        return math.inf, "a loss is not finite"
    scale = statistics.fmean(abs(a) for a, _ in both) or 1.0
    gap = abs(statistics.fmean(a - b for a, b in both)) / scale
    largest = max(abs(a - b) for a, b in both) / scale
    if gap <= LOSS_TOLERANCE:
        return (
            gap,
            f"same loss over {len(both)} steps: means {100 * gap:.2g} % apart, single steps {100 * largest:.2g} %",
        )
    where = next(i for i, (a, b) in enumerate(both) if abs(a - b) > LOSS_TOLERANCE * scale)
    return gap, f"another loss: means {100 * gap:.2g} % apart, from step {where + 1} on"


def _compared(first: Sequence[ScriptRun], second: Sequence[ScriptRun]) -> Comparison:
    return compare([run.step_s for run in first], [run.step_s for run in second])


def _is_clear(first: Sequence[ScriptRun], second: Sequence[ScriptRun]) -> bool:
    comparison = _compared(first, second)
    return comparison.ci95[0] > 1 or comparison.ratio < _TOO_LITTLE


def _middle(runs: Sequence[ScriptRun]) -> ScriptRun:
    return sorted(runs, key=lambda run: run.step_s)[len(runs) // 2]
