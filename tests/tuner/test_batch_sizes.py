"""whet tune --allow-batch: larger batches beside the training's own, over the same samples."""

from pathlib import Path
from typing import Any

import pytest
from fake_training_results import gain
from pydantic import BaseModel

from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.errors import OptionError
from whet.measure.isolate import Outcome
from whet.measure.quiet import QuietWait
from whet.tuner.result import LargerBatch
from whet.tuner.training.batch_sizes import try_batches
from whet.tuner.training.context import TrainingContext
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.steps_process import StepsRequest
from whet.tuner.training.trial import LossRequest, LossRun
from whet.tuner.training.words import batch_sentences
from whet.tuner.tuning import tune

STEPS = (Step(technique="fused_optimizer"),)


class GivenTimes:
    """Answer as processes would: seconds of as many samples by how much larger the batch is."""

    def __init__(self, seconds: dict[int, float], worse: float = 0.0) -> None:
        self.seconds = seconds
        self.worse = worse
        self.requests: list[Any] = []

    def __call__(self, function: Any, request: Any, folder: Path, limit_s: float) -> Outcome:
        self.requests.append(request)
        answer: BaseModel
        if isinstance(request, StepsRequest):
            drift = 1 + 0.001 * (len(self.requests) % 5)
            samples = request.num_steps * request.batch_factor
            answer = Run(seconds=samples * self.seconds[request.batch_factor] * drift, peak_bytes=10**8, num_calls=9)
        else:
            assert isinstance(request, LossRequest)
            loss = 2.0 + 0.01 * request.seed + (self.worse if request.batch_factor > 1 else 0.0)
            answer = LossRun(held_out=loss, middle=loss + 0.5, begin=4.0)
        return Outcome(answer.model_dump(mode="json"), None, 0.1, 0)


def found_with(times: GivenTimes, tmp_path: Path) -> list[LargerBatch]:
    facts = TrainingFacts.model_construct(num_samples=16.0, optimizer="AdamW", quality_name="held-out loss")
    context = TrainingContext("train.py:workload", facts, tmp_path, times)
    clock = iter(range(10**6)).__next__
    return try_batches(
        context, STEPS, 40, allowed=0.0025, clock=lambda: clock() / 100, left_s=1000, patience=QuietWait("go-on")
    )


def test_faster_batches_are_compared_after_equal_numbers_of_samples(tmp_path: Path) -> None:
    times = GivenTimes({1: 0.010, 2: 0.008, 4: 0.007})
    two, four = found_with(times, tmp_path)
    assert (two.factor, four.factor) == (2, 4)
    assert two.speedup == pytest.approx(1.25, rel=0.01) and four.speedup == pytest.approx(10 / 7, rel=0.01)
    assert two.learning_rate_factor == pytest.approx(2**0.5)
    assert two.throughput_per_s == pytest.approx(16 * 2 / 0.016, rel=0.01)
    assert two.losses is not None and two.losses.is_same is True
    timed = {(r.num_steps, r.batch_factor) for r in times.requests if isinstance(r, StepsRequest)}
    assert timed == {(2, 1), (1, 2), (4, 1), (1, 4)}, "both sides of a pair work on the same samples"
    losses = {(r.num_steps, r.batch_factor) for r in times.requests if isinstance(r, LossRequest)}
    assert losses == {(40, 1), (20, 2), (10, 4)}
    assert all(request.steps == STEPS for request in times.requests), "with the recipe that is kept, on both sides"


def test_a_worse_loss_is_said(tmp_path: Path) -> None:
    two, _ = found_with(GivenTimes({1: 0.010, 2: 0.008, 4: 0.007}, worse=0.2), tmp_path)
    assert two.losses is not None and two.losses.is_same is False


def test_what_is_slower_ends_the_search(tmp_path: Path) -> None:
    times = GivenTimes({1: 0.010, 2: 0.011, 4: 0.007})
    [two] = found_with(times, tmp_path)
    assert two.verdict == "fail" and two.losses is None
    assert not any(isinstance(request, LossRequest) for request in times.requests)


def test_sentences() -> None:
    one = LargerBatch(
        factor=2,
        learning_rate_factor=2**0.5,
        latency_ms=16.0,
        throughput_per_s=2_000.0,
        peak_bytes=500_000_000,
        speedup=1.25,
        speedup_ci95=(1.2, 1.3),
        verdict="inconclusive",
    )
    shown = gain().model_copy(update={"larger_batches": [one, one.model_copy(update={"failure": "no memory"})]})
    first, second = batch_sentences(shown)
    assert first == (
        "A batch 2 times as large: 1.25x (1.20–1.30), 2,000 tokens a second, 500 MB; no proof that it is faster."
    )
    assert second == "A batch 2 times as large failed: no memory."


def test_a_model_has_no_batch_to_change(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="allow_batch goes with a training"):
        tune("digits-cnn", allow_batch=True, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
