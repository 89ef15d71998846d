"""Measure a training on larger batches, after equal numbers of samples: whet tune --allow-batch.

A larger batch is another training, so no recipe contains it. What is found is said beside the verdict.
"""

from collections.abc import Callable

from whet.comparison.claim import Claim, Verdict
from whet.comparison.compare import TimeLimit, compare_all
from whet.comparison.run import Run
from whet.comparison.schedules import ABBA
from whet.comparison.stopping import Fixed
from whet.core.recipe import Step
from whet.core.workload.larger_batch import learning_rate_factor, learning_rate_rule
from whet.measure.quiet import QuietWait
from whet.tuner.budget_plan import MIN_ROUNDS, ROUNDS
from whet.tuner.result import LargerBatch
from whet.tuner.training.context import TrainingContext
from whet.tuner.training.finals import RUN_S, PairServers, prove_losses, steps_side
from whet.tuner.training.steps_process import StepsRequest

FACTORS = (2, 4)
_TIMES_SHARE = 0.4  # of the time that is given; the rest is for the held-out loss


def try_batches(
    context: TrainingContext,
    steps: tuple[Step, ...],
    num_steps: int,
    *,
    allowed: float,
    clock: Callable[[], float],
    left_s: float,
    patience: QuietWait,
) -> list[LargerBatch]:
    """Measure batches that are two and four times as large, as long as they are faster and there is time.

    Args:
        steps: The recipe that is kept; empty for the original.
        num_steps: Optimiser steps of the training as it is, in each run for the held-out loss.
        allowed: The rise of the held-out loss that is allowed.
    """
    found: list[LargerBatch] = []
    ends, servers = clock() + left_s, PairServers(context.renew)
    for factor in FACTORS:
        times_end = clock() + _TIMES_SHARE * (ends - clock()) / (len(FACTORS) - len(found))
        own, larger = (  # both make the same samples in one call
            steps_side(
                context,
                servers,
                f"batch-{factor}-{name}",
                StepsRequest(target=context.target, steps=steps, timing_s=RUN_S, **sizes),
            )
            for name, sizes in (("own", {"num_steps": factor}), ("larger", {"batch_factor": factor}))
        )
        compared = compare_all(
            [(own, larger)],
            schedule=ABBA(),
            stop=Fixed(ROUNDS, MIN_ROUNDS, noise_from="pairs"),
            patience=patience,
            limit=TimeLimit(times_end, times_end, clock),
            report=lambda done, number: None,
        )
        [claim] = compared.claims
        one = _described(context, factor, claim, list(compared.runs.get(larger.name, ())))
        if claim.verdict is Verdict.PASS:
            one.losses = prove_losses(
                context, steps, num_steps, allowed=allowed, left_s=lambda: ends - clock(), batch_factor=factor
            )
        found.append(one)
        if claim.verdict is not Verdict.PASS:
            break
    return found


def _described(context: TrainingContext, factor: int, claim: Claim, runs: list[Run]) -> LargerBatch:
    facts = context.facts
    seconds = sorted(claim.new_s)[len(claim.new_s) // 2] if claim.new_s else 0.0
    failure = next((run.failure for run in runs if run.failure), "")
    return LargerBatch(
        factor=factor,
        learning_rate_factor=learning_rate_factor(factor, learning_rate_rule(facts.optimizer)),
        latency_ms=seconds * 1e3,
        throughput_per_s=factor * facts.num_samples / seconds if seconds else 0.0,
        peak_bytes=max((run.peak_bytes for run in runs), default=0),
        speedup=claim.ratio,
        speedup_ci95=claim.ci95,
        verdict=claim.verdict.value,
        failure=failure,
    )
