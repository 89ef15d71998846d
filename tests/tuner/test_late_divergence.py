"""An original that diverges late, after the examination and the finals, is said to; no recipe is blamed for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from whet.core.recipe import Recipe, Step
from whet.measure.isolate import Failure, FailureKind, Outcome
from whet.tuner.records import TrialOutcome
from whet.tuner.training.context import InterleavedBaseline, TrainingContext, record_of
from whet.tuner.training.finals import prove_losses
from whet.tuner.training.trial import LossRequest, LossRun, TrainingMeasured, train_for_loss

AUTOCAST = Step(technique="autocast")
NAN = "the loss of step 57 is nan"


@dataclass
class Written:
    """Answer in the place of processes: the loss runs of the original and of the recipe, by seed."""

    loss_run: Callable[[LossRequest], LossRun | Failure]
    trial: TrainingMeasured | None = None

    def __call__(self, function: Any, request: Any, directory: Path, limit_s: float) -> Outcome:
        found = self.loss_run(request) if function is train_for_loss else self.trial
        if isinstance(found, Failure):
            return Outcome(None, found, 1.0, 0)
        assert found is not None
        return Outcome(found.model_dump(mode="json"), None, 1.0, 0)


def context(run: Written) -> TrainingContext:
    facts = SimpleNamespace(
        higher_is_better=False, quality_name="held-out loss", fingerprint="", batches=(), next_batches=()
    )
    return TrainingContext("target", cast(Any, facts), Path(), run, num_known=40)


def proof_of(loss_run: Callable[[LossRequest], LossRun | Failure]) -> Any:
    return prove_losses(context(Written(loss_run)), (AUTOCAST,), 40, allowed=0.0025, left_s=lambda: 1e9)


def score(seed: int | None) -> LossRun:
    return LossRun(held_out=1 + 0.01 * (seed or 0), middle=1.5, begin=3.0)


@pytest.mark.parametrize(
    ("both", "said"),
    [(True, f"{NAN}, with and without the recipe"), (False, f"{NAN}; with the recipe it does not fail")],
)
def test_an_original_that_diverges_with_another_seed_is_said_to(both: bool, said: str) -> None:
    def loss_run(request: LossRequest) -> LossRun:
        is_broken = request.seed == 2 and (both or not request.steps)
        return LossRun(held_out=math.nan, middle=1.5, begin=3.0, failure=NAN) if is_broken else score(request.seed)

    proof = proof_of(loss_run)
    assert (proof.is_same, len(proof.pairs)) == (None, 2)
    assert f"the original's own run with seed 2 fails: {said}" in proof.words


def test_an_original_whose_process_fails_is_said_to() -> None:
    failure = Failure(FailureKind.ERROR, "IndexError: list index out of range")
    proof = proof_of(lambda request: score(request.seed) if request.steps else failure)
    assert proof.is_same is None
    assert "the original's own run with seed 1 fails: " in proof.words and "list index" in proof.words
    blamed = proof_of(lambda request: failure if request.steps else score(request.seed))
    assert blamed.is_same is False and "list index" in blamed.words


@pytest.mark.parametrize(("original", "said"), [(NAN, f"{NAN}, and without the recipe too"), ("", NAN)])
def test_a_faster_recipe_that_comes_to_where_the_original_diverges_is_not_blamed(original: str, said: str) -> None:
    """The original made 40 steps in the time of its trial, and the recipe 60."""
    asked: list[int] = []

    def loss_run(request: LossRequest) -> LossRun:
        asked.append(request.num_steps)
        return LossRun(held_out=1.0, middle=1.0, begin=3.0, failure=original)

    found = TrainingMeasured(outcome=TrialOutcome(status="failed", reason=NAN), num_steps=60)
    where = context(Written(loss_run, found))
    record = record_of(where, cast(InterleavedBaseline, None), 1, Recipe(steps=(AUTOCAST,)), 60.0)
    assert (record.status, record.reason, asked) == ("failed", said, [60])
