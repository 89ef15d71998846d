"""The verdict of a search for the memory of a training."""

import pytest

from whet.measure.quiet import Patience
from whet.recipe import Recipe, Step
from whet.training.technique import Exactness
from whet.tuner.goal import Goal
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.finals import MIN_ROUNDS
from whet.tuner.training.trial import exactness_of
from whet.tuner.training.verdict import best_point, conclusion

FACTS = TrainingFacts.model_construct(unit="tokens")
CHECKPOINTING, CHUNKED = (Step(technique=name) for name in ("checkpointing", "chunked_loss"))


def point(*steps: Step, peak_bytes: int, speedup: float, num_pairs: int = MIN_ROUNDS) -> MeasuredVariant:
    return MeasuredVariant(
        steps=steps,
        label=str(Recipe(steps=steps)) if steps else "original",
        latency_ms=100 / speedup,
        throughput_per_s=1000.0,
        peak_bytes=peak_bytes,
        size_bytes=0,
        speedup=speedup,
        speedup_ci95=(0.98 * speedup, 1.02 * speedup),
        process_latencies_ms=[100 / speedup] * num_pairs,
        is_smaller=bool(steps) and num_pairs >= MIN_ROUNDS,
        verdict="fail",
    )


BASELINE = point(peak_bytes=2_000_000_000, speedup=1.0)


def verdict(*points: MeasuredVariant, goal: Goal) -> tuple[str, str, MeasuredVariant]:
    records = [TrialRecord(number=1, steps=(CHUNKED,), status="done", speedup=0.9, peak_bytes=1_500_000_000)]
    best = best_point(goal, BASELINE, points)
    return conclusion(goal, FACTS, BASELINE, best, points, records, Patience("go-on"), 480.0)


def test_a_smaller_one_that_is_too_slow_is_named() -> None:
    assert exactness_of([CHECKPOINTING, CHUNKED]) is Exactness.EXACT
    small = point(CHECKPOINTING, peak_bytes=500_000_000, speedup=0.75)
    kept = point(CHUNKED, peak_bytes=900_000_000, speedup=0.95)
    word, sentence, best = verdict(small, kept, goal=Goal("memory", max_slowdown=1.3))
    assert (word, best.label) == ("gain", "chunked_loss")
    assert sentence.endswith(
        " checkpointing is left out: a step takes 500 MB, but up to 1.36 times the original's time; 1.3 is allowed."
    )
    assert verdict(small, kept, goal=Goal("memory", max_slowdown=1.4))[2].label == "checkpointing"


def test_too_few_pairs_are_no_verdict() -> None:
    few = point(CHECKPOINTING, peak_bytes=500_000_000, speedup=0.9, num_pairs=MIN_ROUNDS - 1)
    word, sentence, best = verdict(few, goal=Goal("memory"))
    assert (word, best) == ("inconclusive", BASELINE)
    assert "--budget 8m would be enough" in sentence


@pytest.mark.parametrize(("objective", "said"), [("memory", "took 1.50 GB"), ("throughput", "showed 0.90x")])
def test_why_the_original_stays(objective: str, said: str) -> None:
    same = point(CHUNKED, peak_bytes=2_000_000_000, speedup=0.9).model_copy(update={"is_smaller": False})
    word, sentence, _ = verdict(same, goal=Goal(objective))  # type: ignore[arg-type]
    assert word == "no-gain"
    assert said in sentence


def test_what_takes_more_memory_than_allowed_is_not_kept() -> None:
    large, small = (
        point(step, peak_bytes=peak, speedup=speed).model_copy(update={"verdict": "pass"})
        for step, peak, speed in ((CHECKPOINTING, 900_000_000, 2.0), (CHUNKED, 500_000_000, 1.5))
    )
    assert verdict(large, small, goal=Goal("throughput"))[2].label == "checkpointing"
    assert verdict(large, small, goal=Goal("throughput", max_memory_bytes=600_000_000))[2].label == "chunked_loss"
    word, sentence, best = verdict(large, small, goal=Goal("throughput", max_memory_bytes=400_000_000))
    assert (word, best) == ("no-gain", BASELINE)
    assert "the original takes 2.00 GB, more than the 400 MB allowed; --objective memory" in sentence
