"""Tune a training script from end to end, from outside: examine, search, compare, prove the loss, write the recipe."""

import datetime
import json
import math
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.comparison.claim import Verdict
from whet.comparison.compare import Comparison, TimeLimit, compare_all
from whet.comparison.run import Run
from whet.comparison.schedules import ABBA
from whet.comparison.stopping import Fixed
from whet.errors import ModelError, OptionError, TargetError
from whet.files import write_whole
from whet.machine import describe
from whet.machine.library_versions import versions
from whet.measure.quiet import Patience
from whet.recipe import FILE as RECIPE
from whet.recipe import Step
from whet.scripts.command import ScriptOutcome
from whet.scripts.messages import ScriptRecord
from whet.scripts.script_command import ScriptCommand
from whet.training.loss_proof import LEAST, MOST, TRAINING_LOSS, LossPair, LossProof, is_over, judge
from whet.training.sensitivity import BFLOAT16, SUMS
from whet.tuner.budget import Budget, needed_for
from whet.tuner.goal import MAX_DROP_TRAINING, SCRIPT_STEPS
from whet.tuner.listener import Listener
from whet.tuner.outlook import MIN_ROUNDS
from whet.tuner.proven_recipe import recipe_of
from whet.tuner.records import TrialRecord
from whet.tuner.result import FILE, MeasuredVariant, RefusedTechnique, Result
from whet.tuner.scripts.proof import SAME_LOSS, Original, first_not_finite, relative_gaps
from whet.tuner.scripts.runs import LEAST_STEPS, ScriptRuns, ScriptSide, timed_run
from whet.tuner.scripts.search import ScriptSearch, candidates, finalists
from whet.tuner.scripts.verdict import Spent, is_rounded, is_unfinished, verdict
from whet.tuner.time_account import EXAMINATION, FINALS, LOSSES, TRIALS, TimeAccount
from whet.tuner.training.points import measured_point
from whet.tuner.verdict import TIME_UP

_ROUNDS, _MIN_ROUNDS = 8, MIN_ROUNDS
_NUM_MOVES = {SUMS: 1, BFLOAT16: 3}  # runs with moved parameters, by how far these are moved
_RUN_LIMIT_S = 300.0
_MORE_RUNS = 3  # after the first one, to examine a script
_LOSSES_SHARE = 0.25  # of the budget, at the most, that the finals leave to the proof of the loss


@dataclass(frozen=True)
class ScriptPlan:
    """Hold what a search for a script is asked for.

    Attributes:
        command: The command.
        directory: The directory for the results.
        num_steps: The most optimiser steps of a run.
        budget_s: Seconds for everything.
        max_drop: How much of the training loss may be lost, as a fraction.
        exclude: Techniques that are not tried.
    """

    command: ScriptCommand
    directory: Path
    num_steps: int = SCRIPT_STEPS
    budget_s: float = 300.0
    max_drop: float = MAX_DROP_TRAINING
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_steps < LEAST_STEPS:
            raise OptionError(f"--steps {self.num_steps} are too few to time and to prove; give {LEAST_STEPS} or more")
        if not 0 <= self.max_drop < 1 or self.budget_s <= 0:
            raise OptionError("--max-drop lies from 0 to below 1, and --budget is more than 0 seconds")


@dataclass(frozen=True)
class Examined:
    """Hold what was found out about the script as it is.

    Attributes:
        watched: A run whose phases were timed.
        timed: A run that was timed as a whole.
        original: Runs with dropout off, for the proofs.
    """

    watched: ScriptRecord
    timed: Run
    original: Original


def tune_planned(plan: ScriptPlan, patience: Patience, listener: Listener) -> Result:
    """Find the fastest recipe for a training script that stays as it is, and prove it.

    Raises:
        TargetError: The script cannot be run, or its loop cannot be recognised.
        ModelError: It does not train the same twice, or its loss is not finite.
    """
    began = datetime.datetime.now(datetime.UTC)
    budget = Budget(plan.budget_s, clock=lambda: time.monotonic() - patience.spent_s)
    with tempfile.TemporaryDirectory(prefix="whet-script-") as scratch:
        runs = ScriptRuns(plan.command, Path(scratch), plan.num_steps, min(_RUN_LIMIT_S, plan.budget_s))
        patience.begin()
        account = TimeAccount(budget.clock)
        with account.part(EXAMINATION):
            examined = examine(runs, plan.command.name, budget)
        search = ScriptSearch(runs, examined.original, patience, listener)
        todo, cannot = candidates(examined.watched, plan.exclude)
        costs = runs.costs(needs_losses=any(is_rounded((one.step,)) for one in todo))
        with account.part(TRIALS):
            search.go(todo, costs.search_s(budget))
        result = _concluded(plan, runs, budget, examined, search, patience, listener, account)
    result.time_s = account.seconds
    result.untried = [*search.untried, *cannot]
    result.refused = [RefusedTechnique(technique=n, reason=why) for n, why in examined.watched.refused.items()]
    result.out, result.started_at = str(plan.directory), began.isoformat(timespec="seconds")
    result.budget_s, result.seconds = plan.budget_s, budget.elapsed_s
    plan.directory.mkdir(parents=True, exist_ok=True)
    recipe_of(result).write(plan.directory / RECIPE)
    write_whole(plan.directory / FILE, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")
    return result


def examine(runs: ScriptRuns, name: str, budget: Budget) -> Examined:
    """Run the script as it is four times: watched, once more, and with dropout off on all threads and on one.

    Raises:
        TargetError: It cannot be run, or its loop cannot be recognised.
        OptionError: The other runs would not end within the budget.
        ModelError: It does not train the same twice, or its loss is not finite.
    """

    def recorded(outcome: ScriptOutcome) -> ScriptRecord:
        if outcome.record is None and budget.left_s <= 0:
            told = f"to examine {name} takes longer than a budget of {budget.seconds:g} s; give a larger --budget"
            raise OptionError(told)
        if outcome.record is None:
            raise TargetError(f"{name} cannot be tuned from outside: {outcome.failure}")
        return outcome.record

    first = recorded(runs.timed(is_watched=True))
    if _MORE_RUNS * runs.longest_s > budget.left_at_most_s:
        raise OptionError(
            f"to examine {name} takes longer than a budget of {budget.seconds:g} s: a run takes "
            f"{runs.longest_s:.0f} s, and {_MORE_RUNS} more are needed; give a larger --budget, or fewer --steps"
        )
    losses = first.losses
    if len(losses) < LEAST_STEPS:
        raise TargetError(
            f"{name} makes {len(losses)} optimiser steps; give it arguments with which it makes {LEAST_STEPS} or more"
        )
    if all(loss is None for loss in losses):
        raise TargetError(
            f"no loss of {name} was seen: it calls backward on no single number; use whet.prepare in its own loop"
        )
    if (bad := first_not_finite(losses)) is not None:
        raise ModelError(f"the loss of step {bad} of {name} as it is is {losses[bad - 1]}; mend that first")
    second = runs.timed()
    again = recorded(second).losses
    gaps = relative_gaps(losses, again)
    apart = next((i for i, gap in enumerate(gaps) if gap > SAME_LOSS), None)
    if apart is not None:
        raise ModelError(
            f"{name} does not train the same twice: step {apart + 1} has the losses {losses[apart]:.6g} and "
            f"{again[apart]:.6g} from the same seeds. Seed every generator of its own "
            "(numpy.random.default_rng, torch.Generator), and sort the files that it reads"
        )
    run = runs.proof()
    recorded(run)
    other = run if describe().cores < 2 else runs.proof(num_threads=1)
    recorded(other)

    def run_moved(size: float) -> list[ScriptOutcome]:
        found = [runs.moved(size, number) for number in range(_NUM_MOVES[size])]
        return [one for one in found if one.record is not None]  # without one that failed, less is allowed

    return Examined(first, timed_run(second), Original(run, other, run_moved))


def _concluded(
    plan: ScriptPlan,
    runs: ScriptRuns,
    budget: Budget,
    examined: Examined,
    search: ScriptSearch,
    patience: Patience,
    listener: Listener,
    account: TimeAccount,
) -> Result:
    """Compare the best recipes with the script as it is, prove their loss, and say what was found."""
    chosen = _fitting(finalists(search.records), runs, budget)
    costs = runs.costs(needs_losses=any(is_rounded(record.steps) for record in chosen))
    if chosen:
        listener.known(f"{chosen[0].label}: {chosen[0].speedup:.2f}x in the screening, not proved yet")
    found = Comparison([], {})
    with account.part(FINALS):
        if chosen and costs.fits_finals(budget):
            losses_s = min(_LOSSES_SHARE * budget.seconds, LEAST * costs.loss_pair_s)
            found = _finals(runs, chosen, budget, losses_s, patience, listener)
    own = [run for run in found.runs.get("original", ()) if run.counts] or [examined.timed]
    baseline = _baseline(own)
    judged = [(r, claim) for r, claim in zip(chosen, found.claims, strict=False) if claim.ratio is not None]
    points = [measured_point(r, claim) for r, claim in judged]
    for point in sorted((p for p in points if p.verdict == Verdict.PASS), key=lambda p: -p.speedup):
        if is_rounded(point.steps):
            listener.known(f"{point.label}: {point.speedup:.2f}x in the finals, its training loss is not proved yet")
            with account.part(LOSSES):
                point.losses = _prove(plan, runs, budget, point.steps, listener)
    todo = len({one.technique for one in search.untried if one.reason == TIME_UP}) if not search.records else 0
    is_open = any(point.losses is not None and is_unfinished(point.losses) for point in points)
    done_s = sum(account.seconds.get(part, 0.0) for part in (EXAMINATION, TRIALS))
    needed = max(costs.needed_s(done_s, todo, MOST if is_open else LEAST), needed_for(plan.budget_s + 1))
    machine = describe()
    facts = Spent(account.seconds.get(EXAMINATION, 0.0), costs, needed, todo)
    word, sentence, best, is_short = verdict(baseline, points, search.records, patience, facts)
    command = shlex.join(plan.command.words)
    return Result(
        kind="training",
        unit="steps",
        target=command,
        objective="throughput",
        max_drop=plan.max_drop,
        verdict=word,  # type: ignore[arg-type]
        sentence=sentence,
        busy=patience.sentence if word == "inconclusive" and patience.cause else "",
        needed_s=needed if is_short else None,
        quality_name=TRAINING_LOSS,
        higher_is_better=False,
        baseline=baseline,
        best=best,
        finalists=points,
        trials=search.records,
        machine=machine.facts(),
        fingerprint=machine.fingerprint,
        versions=versions(),
        command=shlex.join(["whet", "tune", "--out", str(plan.directory), "--", *plan.command.words]),
        unsaved=f"a training recipe changes the loop: whet run --recipe {plan.directory} -- {command}",
    )


def _fitting(chosen: list[TrialRecord], runs: ScriptRuns, budget: Budget) -> list[TrialRecord]:
    """Return the fastest recipe alone, or the exact one alone, where the proofs of both do not fit."""
    if len(chosen) < 2:
        return chosen
    costs, left_s = runs.costs(needs_losses=True), budget.left_at_most_s
    if costs.proof_s + MIN_ROUNDS * costs.pair_s <= left_s:
        return chosen
    return chosen[:1] if costs.proof_s <= left_s else chosen[1:]


def _finals(
    runs: ScriptRuns,
    chosen: Sequence[TrialRecord],
    budget: Budget,
    losses_s: float,
    patience: Patience,
    listener: Listener,
) -> Comparison:
    """Measure the script as it is and with each recipe in pairs of processes, one after the other and back."""
    original = ScriptSide(runs, "original")
    now = budget.clock()
    limit = TimeLimit(now + budget.left_s - losses_s, now + budget.left_at_most_s - losses_s, budget.clock)
    stop = Fixed(_ROUNDS, _MIN_ROUNDS, noise_from="pairs")
    return compare_all(
        [(original, ScriptSide(runs, f"final-{record.number}", record.steps)) for record in chosen],
        schedule=ABBA(),
        stop=stop,
        patience=patience,
        limit=limit,
        report=lambda done, _: listener.measured(min(done, stop.most), stop.most),
    )


def _prove(
    plan: ScriptPlan, runs: ScriptRuns, budget: Budget, steps: tuple[Step, ...], listener: Listener
) -> LossProof | None:
    """Train pairs of runs with other seeds until their training losses tell; None where no pair fits the budget."""
    pairs: list[LossPair] = []
    proof: LossProof | None = None
    while (proof is None or not is_over(proof)) and budget.left_at_most_s > 2 * runs.longest_s:
        seed = len(pairs) + 1
        old, new = (runs.for_loss(chosen, seed, plan.num_steps) for chosen in ((), steps))
        before, after = (_scores(outcome) for outcome in (old, new))
        pairs.append(
            LossPair(
                seed=seed,
                old=before[1],
                new=after[1],
                old_middle=before[0],
                new_middle=after[0],
                begin=_first_loss(old),
                old_failure=_loss_fault(old),
                new_failure=_loss_fault(new),
            )
        )
        proof = judge(pairs, allowed=plan.max_drop, score=TRAINING_LOSS)
        listener.proved(len(pairs))
    return proof


def _scores(outcome: ScriptOutcome) -> tuple[float, float]:
    """Return the mean loss of a quarter of the steps before the middle, and of the last quarter; infinite if failed."""
    losses = [loss for loss in outcome.record.losses if loss is not None] if outcome.record is not None else []
    if not losses:
        return math.inf, math.inf
    half, quarter = len(losses) // 2, max(1, len(losses) // 4)
    middle, last = losses[max(0, half - quarter) : max(1, half)], losses[-quarter:]
    return sum(middle) / len(middle), sum(last) / len(last)


def _first_loss(outcome: ScriptOutcome) -> float:
    losses = outcome.record.losses if outcome.record is not None else []
    return next((loss for loss in losses if loss is not None), math.nan)


def _loss_fault(outcome: ScriptOutcome) -> str:
    """Return how a run failed or diverged, in words; "" where it did neither."""
    if outcome.record is None:
        return outcome.failure
    bad = first_not_finite(outcome.record.losses)
    return "" if bad is None else f"the loss of step {bad} is {outcome.record.losses[bad - 1]}"


def _baseline(runs: Sequence[Run]) -> MeasuredVariant:
    seconds = sorted(run.seconds for run in runs)[len(runs) // 2]
    return MeasuredVariant(
        latency_ms=seconds * 1e3,
        throughput_per_s=1 / seconds,
        peak_bytes=sorted(run.peak_bytes for run in runs)[len(runs) // 2],
        size_bytes=0,
        process_latencies_ms=[run.seconds * 1e3 for run in runs],
    )
