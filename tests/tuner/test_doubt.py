"""When the finals are not believed: the machine's noise, and a screening that shows another ratio."""

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_kind
import fake_search
import pytest

from whet.comparison.claim import Claim, Verdict, claim_of
from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.measure.isolate import Function, Outcome
from whet.measure.load import Load
from whet.measure.quiet import QuietWait
from whet.tuner.asked import Asked
from whet.tuner.doubt import doubt_about
from whet.tuner.model_kind import ModelKind
from whet.tuner.records import Timing, TrialRecord
from whet.tuner.trial import TrialRequest
from whet.tuner.trial_context import TrialContext


class Screens:
    """The children of a search: each screening shows the next of these ratios; None is a process that failed."""

    def __init__(self, directory: Path, *found: float | None, busy: int = 0) -> None:
        self.context = TrialContext("net.py:build", fake_search.facts(), directory, self.run)
        self.found = list(found)
        self.busy = busy  # how many of the first are disturbed
        self.asked: list[tuple[str, Any, Path, float]] = []

    def run(self, function: Function, arguments: Any, directory: Path, time_limit_s: float) -> Outcome:
        self.asked.append((function.__name__, arguments, directory, time_limit_s))
        speedup = self.found.pop(0)
        if speedup is None:
            return Outcome(None, None, 0.1, 0)
        busy = "others" if len(self.asked) <= self.busy else ""
        timing = Timing(
            latency_ms=1.0, baseline_latency_ms=speedup, speedup=speedup, speedup_ci95=(speedup, speedup), busy=busy
        )
        return Outcome(timing.model_dump(mode="json"), None, 0.1, 0)


def screened(speedup: float | None, width: float = 1.0) -> TrialRecord:
    """A trial that the screening found so fast; its interval reaches from speedup / width to speedup * width."""
    ci95 = None if speedup is None else (speedup / width, speedup * width)
    return TrialRecord(number=4, steps=[Step(technique="bf16")], status="done", speedup=speedup, speedup_ci95=ci95)


def final(ratio: float = 2.0, width: float = 1.0, noise: float = 1.0, num_pairs: int = 8) -> Claim:
    return Claim(
        verdict=Verdict.PASS, ratio=ratio, ci95=(ratio / width, ratio * width), noise=noise, num_pairs=num_pairs
    )


def patience() -> QuietWait:
    return QuietWait("wait", 100.0, glance=lambda seconds: (Load(seconds, 2), ""))


@pytest.mark.parametrize(("noise", "is_doubted"), [(1.2, False), (1.25, False), (1.26, True), (1.4, True)])
def test_more_noise_than_a_quarter_is_a_doubt(tmp_path: Path, noise: float, is_doubted: bool) -> None:
    children = Screens(tmp_path)
    doubt = doubt_about(children.context, screened(2.0), final(noise=noise), patience())
    said = f"runs of the original differ by up to {noise:.2f}x; a verdict needs at most 1.25x"
    assert doubt == (said if is_doubted else "")
    assert children.asked == []


def test_without_a_screening_nothing_speaks_against_the_finals(tmp_path: Path) -> None:
    children = Screens(tmp_path)
    assert doubt_about(children.context, screened(None), final(9.0), patience()) == ""
    no_interval = screened(3.0).model_copy(update={"speedup_ci95": None})
    assert doubt_about(children.context, no_interval, final(9.0), patience()) == ""
    assert children.asked == []


@pytest.mark.parametrize(
    ("width", "final_width", "noise", "num_pairs", "most"),
    [
        (1.0, 1.0, 1.0, 8, 1.25),  # what sharing a process may do alone
        (1.1, 1.1, 1.0, 8, 1.25 * math.exp(math.sqrt(2) * math.log(1.1))),
        (1.2, 1.0, 1.0, 8, 1.25 * 1.2),
        (1.0, 1.3, 1.0, 8, 1.25 * 1.3),
        (1.0, 1.0, 1.05, 4, 1.25 * 1.05**2),  # four pairs have half the noise of one
        (1.0, 1.0, 1.05, 9, 1.25 * 1.05**3),
    ],
)
@pytest.mark.parametrize("direction", [1, -1])
def test_two_ratios_may_differ_as_far_as_their_errors_explain(
    tmp_path: Path, width: float, final_width: float, noise: float, num_pairs: int, most: float, direction: int
) -> None:
    """The errors add up as independent ones do, and sharing a process may do 25 % beside that."""
    claim = final(2.0, final_width, noise, num_pairs)
    within, beyond = (screened(2.0 * (most * factor) ** direction, width) for factor in (0.999, 1.001))
    children = Screens(tmp_path, 2.0)
    assert doubt_about(children.context, within, claim, patience()) == ""
    assert len(children.asked) == 0
    assert doubt_about(children.context, beyond, claim, patience()) == ""
    assert len(children.asked) == 1, "a screening is measured once more before it counts"


@pytest.mark.parametrize(("again", "shown"), [(7.0, "7.00x"), (None, "30.00x")])
def test_a_screening_that_denies_the_finals_twice_is_a_doubt(tmp_path: Path, again: float | None, shown: str) -> None:
    """Where it cannot be measured again, the first one counts."""
    children = Screens(tmp_path, again)
    doubt = doubt_about(children.context, screened(30.0), final(2.0), patience())
    assert doubt == f"beside the original in one process it is {shown} as fast, in processes of its own 2.00x"


def test_the_screening_is_measured_like_the_first_time(tmp_path: Path) -> None:
    children = Screens(tmp_path, 2.0)
    doubt_about(children.context, screened(30.0), final(2.0), patience())
    ((function, request, directory, limit_s),) = children.asked
    assert function == "screen_again"
    assert directory == tmp_path / "screen"
    assert limit_s == 180
    assert request == TrialRequest(
        known=children.context.known,
        steps=(Step(technique="bf16"),),
        directory=tmp_path / "trial-4" / "artefact",
        timing_s=2.4,
    )
    assert request.known.target == "net.py:build"


def test_a_disturbed_screening_is_measured_again(tmp_path: Path) -> None:
    children = Screens(tmp_path, 30.0, 2.0, busy=1)
    assert doubt_about(children.context, screened(30.0), final(2.0), patience()) == ""
    assert len(children.asked) == 2


@pytest.mark.parametrize(("doubt", "verdict"), [("it is odd", "inconclusive"), ("", "pass")])
def test_a_doubt_leaves_open_what_the_pairs_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubt: str, verdict: str
) -> None:
    monkeypatch.setattr("whet.tuner.model_kind.doubt_about", lambda *_: doubt)
    kind = ModelKind(Asked(), contextlib.nullcontext())  # type: ignore[arg-type]
    kind.work, kind.facts = fake_kind.work(), fake_search.facts()
    kind.context = TrialContext("t", kind.facts, tmp_path, lambda *_: Outcome(None, None, 0.0, 0))
    pairs = tuple((Run(seconds=0.01, p90_s=0.01), Run(seconds=0.005 + i / 1e6, p90_s=0.01)) for i in range(8))
    made = claim_of([old.seconds for old, _ in pairs], [new.seconds for _, new in pairs], noise=1.01)
    record = TrialRecord(number=1, steps=[], status="done", size_bytes=1)
    point = kind.point(record, replace(made, pairs=pairs), kind.baseline([old for old, _ in pairs], []))
    assert (point.verdict, point.doubt) == (verdict, doubt)
    assert point.speedup == pytest.approx(2.0, rel=0.01)
