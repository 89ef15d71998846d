"""What runs, claims and trials become in a result, and what is said of the best."""

import fake_search
import pytest
from points_and_trials import BASELINE, point, trial

from whet.comparison.claim import Claim, Verdict
from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.profiling.model import Profile
from whet.tuner.goal import Goal
from whet.tuner.improvement import improves
from whet.tuner.model_points import gain_sentence, screened_original
from whet.tuner.points import finalist_point, is_smaller, original_point, screened_point
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant


def test_a_screened_figure_is_called_one() -> None:
    best = BASELINE.model_copy(update={"label": "best", "speedup": 3.0, "verdict": "pass"})
    record = TrialRecord(
        number=7,
        steps=[Step(technique="inductor")],
        status="done",
        speedup=1.2,
        speedup_ci95=(1.1, 1.3),
        latency_ms=50.0,
        baseline_latency_ms=60.0,
    )
    screened = screened_point(record, num_samples=2)
    assert screened is not None
    assert (screened.number, screened.latency_ms, screened.beside_ms) == (7, 50.0, 60.0)
    assert "torch.compile alone 1.20x in the screening;" in gain_sentence(Goal(), BASELINE, best, screened, "accuracy")
    paired = screened.model_copy(update={"verdict": "pass"})
    assert "torch.compile alone 1.20x;" in gain_sentence(Goal(), BASELINE, best, paired, "accuracy")


@pytest.mark.parametrize(
    ("num_bytes", "is_better"), [(500, True), (989, True), (990, False), (1000, False), (2000, False)]
)
def test_smaller_by_less_than_a_percent_is_not_smaller(num_bytes: int, is_better: bool) -> None:
    baseline = BASELINE.model_copy(update={"peak_bytes": 1000, "size_bytes": 1000})
    assert improves(Goal("size"), baseline, point(peak_bytes=1, size_bytes=num_bytes)) is is_better
    pairs = tuple((Run(seconds=1.0, peak_bytes=1000), Run(seconds=1.0, peak_bytes=num_bytes)) for _ in range(6))
    claim = Claim(verdict=Verdict.FAIL, pairs=pairs)
    assert is_smaller(claim, 0.99) is is_better
    assert not is_smaller(Claim(verdict=Verdict.FAIL, pairs=pairs[:5]), 0.99), "too few pairs"
    assert is_smaller(claim, 0.99, original_bytes=600) is (num_bytes == 500)


def test_the_original_without_finals_has_the_median_of_the_screenings() -> None:
    facts = fake_search.facts(call_s=0.02, num_samples=8)
    records = [trial(i, baseline_latency_ms=ms) for i, ms in enumerate([1.0, 3.0, 40.0, None])]
    original = screened_original(facts, records)
    assert (original.latency_ms, original.throughput_per_s) == (3.0, pytest.approx(8 / 0.003))
    assert (original.size_bytes, original.quality, original.verdict, original.peak_bytes) == (1000, 1.0, "screened", 0)


def test_the_original_without_any_trial_has_the_profiles_mean_over_its_batches() -> None:
    """Two batches of 20 ms and one of 50 ms."""
    profiles = [(Profile(total_s=s, layers=(), dtype="float32"), count) for s, count in ((0.02, 2), (0.05, 1))]
    original = screened_original(fake_search.facts(profiles=profiles), [trial()])
    assert original.latency_ms == pytest.approx(30.0)


def test_a_trial_becomes_a_point_with_all_its_figures() -> None:
    record = trial(
        3,
        steps=[Step(technique="bf16")],
        latency_ms=4.0,
        baseline_latency_ms=8.0,
        speedup=2.0,
        speedup_ci95=(1.9, 2.1),
        size_bytes=70,
        peak_bytes=80,
        quality=0.9,
        share_of_limit=0.25,
        fixed_batch=16,
    )
    found = screened_point(record, num_samples=32)
    assert found == MeasuredVariant(
        steps=record.steps,
        label=record.label,
        number=3,
        latency_ms=4.0,
        beside_ms=8.0,
        throughput_per_s=8000.0,
        size_bytes=70,
        peak_bytes=80,
        quality=0.9,
        share_of_limit=0.25,
        speedup=2.0,
        speedup_ci95=(1.9, 2.1),
        fixed_batch=16,
        verdict="screened",
    )
    assert all(screened_point(record.model_copy(update={name: None}), 1) is None for name in ("latency_ms", "speedup"))
    bare = screened_point(record.model_copy(update={"peak_bytes": None, "size_bytes": None}), 1)
    assert bare is not None
    assert (bare.peak_bytes, bare.size_bytes) == (0, 0)


def test_a_gain_says_that_its_batch_is_fixed() -> None:
    best = BASELINE.model_copy(update={"label": "fast", "speedup": 3.0, "fixed_batch": 32})
    assert gain_sentence(Goal("latency"), BASELINE, best, None, "accuracy").endswith("; fixed to batch 32.")
    free = best.model_copy(update={"fixed_batch": None})
    assert "batch" not in gain_sentence(Goal("latency"), BASELINE, free, None, "accuracy")


def test_a_gain_in_a_sentence() -> None:
    baseline = BASELINE.model_copy(update={"peak_bytes": 600, "size_bytes": 900, "quality": 0.5})
    best = point("best", speedup=3.0, speedup_ci95=(2.5, 3.5), peak_bytes=400, size_bytes=300, quality=None)
    fast = "best is 3.00x as fast as the original (95% interval 2.50 to 3.50)"
    assert gain_sentence(Goal(), baseline, best, None, "accuracy") == f"{fast}."
    assert gain_sentence(Goal(), baseline, best, best, "accuracy") == f"{fast}."
    memory = gain_sentence(Goal("memory"), baseline, best, None, "accuracy")
    assert memory == f"{fast} and holds 1.50x less memory at its peak."
    unfair = gain_sentence(Goal("memory"), baseline, best, None, "accuracy", is_fair=False)
    assert unfair.startswith(f"{fast} and holds 1.50x less memory at its peak (the original's memory holds what its")
    assert "its own code" not in gain_sentence(Goal(), baseline, best, None, "accuracy", is_fair=False)
    assert gain_sentence(Goal("size"), baseline, best, None, "accuracy") == f"{fast} and is 3.00x smaller on disk."


def test_a_gain_tells_the_quality_before_and_after() -> None:
    best = point("best", speedup=3.0, quality=0.4)
    scored = BASELINE.model_copy(update={"quality": 0.5})
    said = gain_sentence(Goal(), scored, best, None, "accuracy")
    assert "; accuracy: 0.5 before, 0.4 after (scored as one number" in said
    unscored = BASELINE.model_copy(update={"quality": None})
    assert gain_sentence(Goal(), unscored, best, None, "nearness").endswith("; nearness: 0.4 after.")


def test_a_gain_that_cannot_be_saved_says_so() -> None:
    in_process = point("best", speedup=3.0, steps=(Step(technique="torch_compile"),))
    assert ". It cannot be saved: torch.compile makes it anew" in gain_sentence(Goal(), BASELINE, in_process, None, "q")
    assert "cannot be saved" not in gain_sentence(Goal(), BASELINE, point("best"), None, "q")


def test_a_finalist_has_the_figures_of_its_pairs_and_what_its_kind_knows_better() -> None:
    pairs = tuple((Run(seconds=0.8, peak_bytes=900), Run(seconds=0.4, peak_bytes=100 * i)) for i in (4, 2, 3))
    claim = Claim(
        verdict=Verdict.PASS, pairs=pairs, new_s=(0.4,) * 3, ratio=2.0, ci95=(1.9, 2.1), p_value=0.01, noise=1.02
    )
    record = trial(5, steps=[Step(technique="bf16")], size_bytes=70, quality=0.9)
    found = finalist_point(record, claim, 32, per_call=8, quality=None)
    assert (found.number, found.latency_ms, found.throughput_per_s) == (5, pytest.approx(50), pytest.approx(640))
    assert found.process_latencies_ms == pytest.approx([50, 50, 50])
    assert (found.peak_bytes, found.size_bytes, found.quality) == (300, 70, None)
    assert (found.speedup, found.speedup_ci95, found.verdict, found.noise) == (2.0, (1.9, 2.1), "pass", 1.02)
    assert finalist_point(record, claim).quality == 0.9


def test_the_original_has_the_figures_of_its_runs() -> None:
    runs = [Run(seconds=seconds, peak_bytes=900) for seconds in (0.8, 0.4, 0.6)]
    found = original_point(runs, 3.0, per_call=2, peak_bytes=1000)
    assert (found.latency_ms, found.throughput_per_s) == (pytest.approx(300), pytest.approx(10))
    assert (found.peak_bytes, found.noise > 1) == (1000, True)
    assert original_point(runs[:1], 1.0).noise == 1.0, "a single run tells nothing of noise"
