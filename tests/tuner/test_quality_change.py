"""What the samples of an evaluation can show about a drop: by known intervals, and by coverage of a known truth."""

import math
import random

import pytest
import torch
from torch import Tensor

from whet import Quality
from whet.core.workload import Workload, examine
from whet.tuner import figures
from whet.tuner.goal import Goal
from whet.tuner.model_points import gain_sentence
from whet.tuner.quality_change import quality_change, tango_interval
from whet.tuner.result import MeasuredVariant, QualityChange
from whet.tuner.trial import agree, judge


def change(
    original: list[float], variant: list[float], *, max_drop: float = 0.01, higher: bool = True
) -> QualityChange:
    found = quality_change(original, variant, higher_is_better=higher, max_drop=max_drop)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("worse", "better", "num", "interval"),
    [
        # Newcombe (1998), Statistics in Medicine 17, 2635-2650, table III, and Tango (1998), for pairs of 36 and of 44
        (2, 14, 50, (-0.4106, -0.0740)),
        (0, 0, 50, (-0.0714, 0.0714)),
    ],
)
def test_the_interval_is_tangos(worse: int, better: int, num: int, interval: tuple[float, float]) -> None:
    """Against the score test itself, solved by another way; without discordant pairs its limit is z² / (n + z²)."""
    found = tango_interval(worse, better, num)
    if worse + better == 0:
        assert found == pytest.approx(interval, abs=1e-4)
    z = [score_statistic(worse, better, num, limit) for limit in found]
    assert [abs(value) for value in z] == pytest.approx([1.959964] * 2, abs=1e-4)
    assert found[0] < (worse - better) / num < found[1] or worse == better


def score_statistic(b: float, c: float, num: float, difference: float) -> float:
    """Of the hypothesis that the difference is this one, its nuisance parameter found by maximum likelihood.

    A grid finds it, not Tango's formula: the probabilities are q + difference, q, and what remains.
    """

    def log_likelihood(q: float) -> float:
        up, down, rest = q + difference, q, 1 - 2 * q - difference
        if min(up, down, rest) < 0:
            return -math.inf
        terms = ((b, up), (c, down), (num - b - c, rest))
        return sum(n * math.log(p) if p > 0 else (0.0 if n == 0 else -math.inf) for n, p in terms)

    low, high = max(0.0, -difference), (1 - difference) / 2
    for _ in range(200):  # ternary search of a concave function
        a, d = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, d) if log_likelihood(a) >= log_likelihood(d) else (a, high)
    q = (low + high) / 2
    return (b - c - num * difference) / math.sqrt(num * (2 * q + difference * (1 - difference)))


def test_sixty_four_equal_samples_do_not_show_one_percent() -> None:
    hits = [1.0] * 63 + [0.0]
    found = change(hits, hits)
    assert (found.drop, found.num_worse, found.num_better) == (0.0, 0, 0)
    assert found.ci95[1] == pytest.approx(3.8415 / (64 + 3.8415) / (63 / 64), rel=1e-3)
    assert not found.is_shown
    assert found.needed_samples is not None
    more = round(found.needed_samples / 64) + 1
    assert change(hits * more, hits * more).is_shown


def test_four_hundred_equal_samples_do() -> None:
    hits = [1.0] * 399 + [0.0]
    found = change(hits, hits)
    assert found.is_shown
    assert found.needed_samples is None
    assert 0.009 < found.ci95[1] < 0.01


def test_an_allowed_drop_of_nothing_is_never_shown() -> None:
    found = change([1.0] * 1000, [1.0] * 1000, max_drop=0.0)
    assert not found.is_shown
    assert found.needed_samples is None
    assert "more like these would not show it" in figures.change(found, 0.0)


def test_lower_may_be_better() -> None:
    losses = [1.0 + 0.01 * i for i in range(50)]
    worse = [1.05 * loss for loss in losses]
    assert change(losses, worse, higher=False).drop == pytest.approx(0.05)
    assert change(losses, worse, higher=True).drop == pytest.approx(-0.05)
    assert change(losses, worse, higher=False).num_worse == 50


def test_few_changed_graded_scores_are_not_taken_for_all_there_could_be() -> None:
    """One of 64 graded scores moves by a hair: another 64 could hold one that moves by much."""
    scores = [0.1 + 0.0125 * i for i in range(64)]
    moved = [scores[0] - 1e-9, *scores[1:]]
    assert not change(scores, moved).is_shown
    assert change(scores, moved).ci95[1] > 0.05


@pytest.mark.parametrize("kind", ["hits", "losses"])
def test_the_interval_covers_the_truth(kind: str) -> None:
    """In about 95 of 100 evaluations drawn from a population whose drop is known."""
    rng, covered, draws = random.Random(7), 0, 400
    for _ in range(draws):
        if kind == "hits":  # 2 % fall, 1 % rise, of 90 % right: a drop of 1 / 90
            pairs = rng.choices([(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)], [88, 2, 1, 9], k=300)
            truth = 0.01 / 0.9
            scale = sum(a for a, _ in pairs) / 300
            found = quality_change(*zip(*pairs, strict=True), higher_is_better=True, max_drop=0.01)
        else:
            base = [rng.gauss(2.0, 0.3) for _ in range(80)]
            pairs = [(a, a + rng.gauss(0.02, 0.05)) for a in base]
            truth, scale = 0.02 / 2.0, sum(base) / 80
            found = quality_change(*zip(*pairs, strict=True), higher_is_better=False, max_drop=0.01)
        assert found is not None
        # of the difference itself: that the original's score varies too is not what the interval speaks of
        low, high = (end * scale for end in found.ci95)
        covered += low <= truth * (0.9 if kind == "hits" else 2.0) <= high
    assert 0.92 * draws <= covered <= 0.985 * draws


def test_scores_that_cannot_be_paired_have_no_interval() -> None:
    assert quality_change([], [], higher_is_better=True, max_drop=0.01) is None
    assert quality_change([1.0, 0.0], [1.0], higher_is_better=True, max_drop=0.01) is None
    assert "scored as one number" in figures.change(None, 0.01)


def hits_workload(num: int) -> Workload:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 4).eval(), torch.randn(num, 8)
    labels = model(x).argmax(-1)

    def accuracy(predict: object) -> Tensor:
        return (predict(x).argmax(-1) == labels).float()  # type: ignore[operator]

    return Workload(model=model, inputs=[x], quality=Quality("accuracy", accuracy))


def test_a_trial_tells_how_the_samples_changed() -> None:
    examined = examine(hits_workload(64))
    assert (examined.score, len(examined.sample_scores)) == (1.0, 64)

    def three_wrong(batch: Tensor) -> Tensor:
        outputs = examined.workload.model(batch).detach().clone()
        outputs[:3] = -outputs[:3]
        return outputs

    agreement = agree(examined, lambda batch: [three_wrong(batch)])
    found = judge(examined, three_wrong, agreement, 0.1)
    assert found.status == "done"
    assert found.drop == pytest.approx(3 / 64)
    assert found.change is not None and found.change.num_worse == 3
    assert not found.change.is_shown, "4.7 % measured, but up to 12.9 % are within the interval"
    rejected = judge(examined, three_wrong, agreement, 0.01)
    assert (rejected.status, rejected.rejected_for) == ("rejected", "quality")


def test_the_sentence_of_a_gain_says_what_the_samples_show() -> None:
    def point(**more: object) -> MeasuredVariant:
        return MeasuredVariant(latency_ms=1.0, throughput_per_s=1.0, peak_bytes=1, size_bytes=1, quality=0.98, **more)  # type: ignore[arg-type]

    for num, shown in ((64, False), (640, True)):
        hits = [1.0] * num
        best = point(label="x", speedup=2.0, speedup_ci95=(1.9, 2.1), change=change(hits, hits))
        text = gain_sentence(Goal(), point(), best, None, "accuracy")
        assert f"accuracy: 0.98 before, 0.98 after (each of the {num} samples scored the same; 95% interval of" in text
        assert ("too few samples to show a drop of at most 1.0%; about 381 could" in text) is not shown
