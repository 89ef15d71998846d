"""The headline says what the figures say, in words, and never more."""

from typing import Any

import fake_results
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.core.recipe import Step
from whet.tuner.headline import CANNOT_BE_SAVED, UNFAIR_MEMORY, headline, share_words, times
from whet.tuner.records import Agreement, QualityChange, TrialRecord
from whet.tuner.result import MeasuredVariant, Result

STEPS = (Step(technique="openvino"),)


def changed(drop: float, low: float, high: float, *, limit: float = 0.01) -> QualityChange:
    return QualityChange(
        drop=drop, ci95=(low, high), num_samples=1000, num_worse=9, num_better=3, is_shown=high <= limit
    )


def found(
    *, speedup: float = 7.42, ci95: tuple[float, float] = (5.53, 9.96), quality: float | None = 0.9,
    change: QualityChange | None = None, size: int = 25, peak: int = 100, passed: str = "pass",
    agreement: Agreement | None = None, **more: Any,
) -> Result:  # fmt: skip
    """A result whose original has accuracy 0.9, size 100 and peak 100, except for what is given."""
    original = {"latency_ms": 10.0, "throughput_per_s": 100.0, "peak_bytes": 100, "size_bytes": 100, "quality": 0.9}
    baseline = MeasuredVariant(**original)
    if quality is None:
        baseline.quality = None
    best = MeasuredVariant(
        steps=STEPS, label="openvino", latency_ms=10 / speedup, throughput_per_s=100 * speedup, peak_bytes=peak,
        size_bytes=size, quality=quality, change=change, agreement=agreement, speedup=speedup, speedup_ci95=ci95,
        verdict=passed,
    )  # fmt: skip
    fields = {"target": "t", "verdict": "gain", "sentence": "All of it.", "quality_name": "accuracy", **more}
    return Result(baseline=baseline, best=best if fields["verdict"] == "gain" else baseline, **fields)


LATENCY = [
    ({"change": changed(0, -0.002, 0.002)}, "7.4x faster, same accuracy, a quarter of the size"),
    ({"change": changed(0.004, 0.001, 0.008)}, "7.4x faster, accuracy 0.4% lower (limit 1%), a quarter of the size"),
    (
        {"change": changed(0.004, -0.01, 0.02)},
        "7.4x faster, accuracy 0.4% lower (limit 1%; too few samples to show it stays within 1%), a quarter of the "
        "size",
    ),
    (
        {"change": changed(0, -0.02, 0.02)},
        "7.4x faster, same accuracy (too few samples to show it stays within 1%), a quarter of the size",
    ),
    (
        {"change": changed(0.0004, 0.0001, 0.0008)},
        "7.4x faster, accuracy 0.04% lower (limit 1%), a quarter of the size",
    ),
    ({"change": changed(-0.02, -0.03, -0.01)}, "7.4x faster, accuracy 2% higher, a quarter of the size"),
    ({"quality": 0.891}, "7.4x faster, accuracy 1% lower (limit 1%), a quarter of the size"),
    (
        {"quality": 0.903, "quality_name": "loss", "higher_is_better": False},
        "7.4x faster, loss 0.33% higher (limit 1%), a quarter of the size",
    ),
    (
        {"quality": 0.81, "quality_name": "loss", "higher_is_better": False},
        "7.4x faster, loss 10% lower, a quarter of the size",
    ),
    (
        {"quality": None, "agreement": Agreement(relative_error=0.1, cosine=0.999993)},
        "7.4x faster, outputs agree with the original's to cosine >0.9999, a quarter of the size",
    ),
    ({"quality": None}, "7.4x faster, quality not measured, a quarter of the size"),
    ({"peak": 135, "size": 100}, "7.4x faster, same accuracy, same size, 35% more memory"),
    ({"size": 0}, "7.4x faster, same accuracy"),
    ({"speedup": 1.271, "ci95": (1.2, 1.3), "size": 112}, "1.27x faster, same accuracy, 12% larger"),
]
OTHERS = [
    ("throughput", {}, "7.4x the throughput, same accuracy, a quarter of the size"),
    ("size", {}, "a quarter of the size, same accuracy, 7.4x faster"),
    (
        "size",
        {"size": 34, "speedup": 0.7, "ci95": (0.6, 0.8), "passed": "fail"},
        "about a third of the size, same accuracy, 1.43x slower",
    ),
    (
        "size",
        {"size": 41, "speedup": 1.01, "ci95": (0.9, 1.1), "passed": "inconclusive"},
        "41% of the size, same accuracy, not shown to be faster",
    ),
    ("memory", {"peak": 52}, "about half the memory, same accuracy, 7.4x faster, a quarter of the size"),
    (
        "memory",
        {"peak": 88, "size": 100, "speedup": 0.98, "ci95": (0.9, 1.1), "passed": "fail"},
        "12% less memory, same accuracy, not shown to be faster, same size",
    ),
]
NO_GAINS = [
    ({"verdict": "no-gain"}, "No gain: the original stays"),
    ({"verdict": "failed"}, "Failed: nothing could be measured, and the original stays"),
    (
        {"verdict": "inconclusive", "busy": "3 of 4 cores"},
        "Inconclusive: the machine was busy, and the original stays",
    ),
    (
        {"verdict": "inconclusive", "needed_s": 90.0},
        "Inconclusive: the time was up before anything was proved, and the original stays",
    ),
    ({"verdict": "inconclusive"}, "Inconclusive: the measurements do not settle it, and the original stays"),
]


@pytest.mark.parametrize(("given_", "words"), LATENCY)
def test_a_faster_model(given_: dict[str, Any], words: str) -> None:
    assert headline(found(**given_)).words == words


@pytest.mark.parametrize(("objective", "given_", "words"), OTHERS)
def test_what_was_asked_for_comes_first(objective: str, given_: dict[str, Any], words: str) -> None:
    assert headline(found(objective=objective, **given_)).words == words


@pytest.mark.parametrize(("given_", "words"), NO_GAINS)
def test_what_is_no_gain_is_said_as_plainly(given_: dict[str, Any], words: str) -> None:
    said = headline(found(**given_))
    assert said.words == words


@pytest.mark.parametrize(
    ("sentence", "details"),
    [
        ("No gain: nothing is proved better; the original stays.", "Nothing is proved better."),
        (
            "No verdict: runs differ. The original stays. On a quiet machine, --resume goes on from here.",
            "Runs differ. On a quiet machine, --resume goes on from here.",
        ),
        (
            "Inconclusive: the time was up. A verdict takes a budget of about 90 s. The original stays.",
            "The time was up. A verdict takes a budget of about 90 s.",
        ),
    ],
)
def test_nothing_is_said_twice(sentence: str, details: str) -> None:
    assert headline(found(verdict="no-gain", sentence=sentence)).details == details


def test_the_figures_of_a_gain_stand_in_its_table_and_not_in_its_words() -> None:
    left_out = "lamb(rate=0.1) is left out: it trains worse"
    result = found(sentence=f"{found().best.label} is 7.40x as fast (95% interval 5.5 to 10). {left_out}.")
    assert headline(result).details == f"By {result.best.label}. {left_out}."
    unsaved = found(sentence=f"It is 7.40x as fast ({UNFAIR_MEMORY}). {CANNOT_BE_SAVED}it is compiled anew.")
    told = "The original's memory holds what its own code builds beside the model, which cannot be saved without."
    assert headline(unsaved).details == f"By {unsaved.best.label}. {told} {CANNOT_BE_SAVED}it is compiled anew."


def test_a_disturbed_run_says_what_it_found_and_no_disturbed_figure() -> None:
    disturbed = {"verdict": "inconclusive", "busy": "the machine was busy: 2 cores", "needed_s": None}
    sentence = f"No verdict: {disturbed['busy']}. The original stays. On a quiet machine, --resume goes on from here."
    result = found(**disturbed, sentence=sentence)
    nothing = "The machine was busy: 2 cores. No trial ran undisturbed, so nothing is known yet."
    assert headline(result).details == nothing
    trials = [
        TrialRecord(number=0, steps=[Step(technique="quick")], status="done", speedup=9.0, busy="2 cores"),
        TrialRecord(number=1, steps=[Step(technique="calm")], status="done", speedup=1.5),
    ]
    said = headline(result.model_copy(update={"trials": trials})).details
    assert "One trial ran undisturbed; the fastest, calm, was 1.50× as fast" in said
    assert "9.00" not in said
    short = result.model_copy(update={"sentence": "autocast is better, but no pair of runs fitted into the budget."})
    assert not short.is_disturbed, "the budget left it open, whatever else ran"


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (25, "a quarter of the size"), (26, "about a quarter of the size"), (30, "30% of the size"),
        (50, "half the size"), (67, "two thirds of the size"), (60, "40% smaller"), (75, "three quarters of the size"),
        (96, "4% smaller"), (100, "same size"), (102, "2% larger"), (210, "2.1x the size"), (2, "2% of the size"),
    ],
)  # fmt: skip
def test_shares_are_named_as_people_name_them(after: int, words: str) -> None:
    assert share_words(after, 100, "size") == words


@given(st.floats(1, 1e5))
def test_a_factor_is_rounded_to_what_people_say(factor: float) -> None:
    assert float(times(factor)[:-1].replace(",", "")) == pytest.approx(factor, rel=0.06)


FRACTION = st.floats(-0.05, 0.05)


@given(
    drop=FRACTION, low=FRACTION, width=st.floats(0, 0.05), has_interval=st.booleans(), higher=st.booleans(),
    verdict=st.sampled_from(["gain", "no-gain", "inconclusive", "failed"]),
    objective=st.sampled_from(["latency", "throughput", "memory", "size"]),
    passed=st.sampled_from(["pass", "fail", "inconclusive", "screened", ""]), speedup=st.floats(0.2, 50),
)  # fmt: skip
def test_it_never_claims_more_than_the_figures_say(
    drop: float, low: float, width: float, has_interval: bool, higher: bool, verdict: str, objective: str, passed: str,
    speedup: float,
) -> None:  # fmt: skip
    change = changed(drop, low, low + width) if has_interval else None
    quality = 0.9 * (1 - drop if higher else 1 + drop)
    result = found(
        quality=quality, change=change, higher_is_better=higher, verdict=verdict, objective=objective, passed=passed,
        speedup=speedup, ci95=(0.9 * speedup, 1.1 * speedup),
    )  # fmt: skip
    said = headline(result)
    if verdict != "gain":
        first = {"no-gain": "No gain: ", "inconclusive": "Inconclusive: ", "failed": "Failed: "}
        assert said.words.startswith(first[verdict])
        assert not any(word in said.words for word in ("faster", "throughput", "quarter", "same accuracy"))
        return
    if has_interval and low > 0:
        assert "same accuracy" not in said.words
    if drop > 0.0006:
        assert f"% {'lower' if higher else 'higher'} (limit 1%" in said.words
    if has_interval and low + width > 0.01:
        assert "too few samples" in said.words
    if passed != "pass":
        assert not any(words in said.words for words in ("x faster", "throughput"))


def test_older_results_get_the_same_words() -> None:
    words = "9.5x faster, accuracy 0.08% lower (limit 1%), about a quarter of the size"
    assert headline(fake_results.gain()).words == words
    assert headline(fake_results.no_gain()).words == "No gain: the original stays"


def test_one_cause_is_named_once() -> None:
    sentence = (
        "Inconclusive: the time was up before anything was proved; in the screening, a was 2.00x as fast as the "
        "original, which proves nothing. A verdict takes a budget of about 90 s. The original stays."
    )
    said = headline(found(verdict="inconclusive", needed_s=90.0, busy="the machine was busy: x", sentence=sentence))
    assert said.words == "Inconclusive: the time was up before anything was proved, and the original stays"
    assert said.details == (
        "In the screening, a was 2.00x as fast as the original, which proves nothing. "
        "A verdict takes a budget of about 90 s."
    )


@pytest.mark.parametrize(
    ("sentence", "details"),
    [
        ("No verdict: openvino(precision=int8) cannot be judged: x.", "openvino(precision=int8) cannot be judged: x."),
        ("No verdict: runs differ.", "Runs differ."),
        ("No verdict: original cannot be judged: x.", "Original cannot be judged: x."),
    ],
)
def test_a_technique_keeps_its_small_letter(sentence: str, details: str) -> None:
    assert headline(found(verdict="inconclusive", sentence=sentence)).details == details
