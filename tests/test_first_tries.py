"""What people try first in Python works, or is refused in one sentence before any work; results are shown in a line."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import whet
from whet.comparison.bench.report import Gate, Point, Sweep
from whet.comparison.sequential import judge
from whet.errors import OptionError, WhetError
from whet.ui import units

MODEL, X = torch.nn.Linear(8, 8).eval(), torch.randn(4, 8)
WORKLOAD = whet.Workload(model=MODEL, inputs=[X])

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "bench a model": (lambda: whet.bench([MODEL]), "by name"),  # type: ignore[list-item]
    "bench a workload": (lambda: whet.bench(WORKLOAD), "by name"),  # type: ignore[arg-type]
    "bench an unknown name": (lambda: whet.bench("digts-cnn"), "did you mean digits-cnn"),
    "bench for no time": (lambda: whet.bench("digits-cnn", budget_s="5 x"), "budget_s '5 x': write a duration"),
    "compare models": (lambda: whet.compare(MODEL, MODEL), r"whet\.Workload\(model=MODEL"),  # type: ignore[arg-type]
    "compare numbers": (lambda: whet.compare(1, 2), "old is an int"),  # type: ignore[arg-type]
    "compare an unknown name": (lambda: whet.compare(WORKLOAD, "digts-cnn"), "did you mean digits-cnn"),
    "compare with a reference": (lambda: whet.compare_with([MODEL], against="main"), "by name"),  # type: ignore[list-item]
    "compare for text": (lambda: whet.compare(WORKLOAD, WORKLOAD, budget_s="soon"), "budget_s 'soon'"),
    "profile a model": (lambda: whet.profile(MODEL, X), r"with whet\.profile\(\) as p"),
    "tune without inputs": (lambda: whet.tune(MODEL), "needs inputs"),
    "tune for text": (lambda: whet.tune(MODEL, X, budget_s="60x"), "budget_s '60x': write a duration"),
    "tune for less than no time": (lambda: whet.tune(MODEL, X, budget_s=-1), "budget_s=-1"),
    "tune for speed": (lambda: whet.tune(MODEL, X, objective="speed"), "objective"),  # type: ignore[arg-type]
    "tune an unknown name": (lambda: whet.tune("digts-cnn"), "did you mean digits-cnn"),
    "train for text": (lambda: whet.train("none.toml", tune_budget_s="soon"), "tune_budget_s 'soon'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_meant_is_refused_before_any_work(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: object) -> None:
        pytest.fail("it began to work")

    monkeypatch.setattr("whet.measure.quiet.QuietWait.begin", waits)
    call, said = REFUSED[case]
    with pytest.raises(WhetError, match=said) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_durations_are_numbers_or_text() -> None:
    assert [units.duration_s("budget_s", value) for value in (60, 60.0, "60", "60s", "1m", "60000ms")] == [60.0] * 6
    assert units.duration_s("busy_wait_s", 0, may_be_zero=True) == 0.0
    for wrong in (0, -1, None, True, [60], float("nan"), "", "1 week"):
        with pytest.raises(OptionError, match="budget_s"):
            units.duration_s("budget_s", wrong)


@pytest.mark.usefixtures("short_children")
def test_one_name_is_benched_like_a_list_of_one(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(8, 8), torch.randn(4, 8)\n"
    )
    sweep = whet.bench("net.py:net", budget_s="100ms", on_busy="go-on")
    assert [(point.target, point.status) for point in sweep.points] == [("net.py:net", "done")]
    assert re.fullmatch(r"Sweep\(Point\(net\.py:net: done, [0-9.e-]+ ms\)\)", repr(sweep))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("optimize", "tune"), ("quantize", "tune"), ("Workloads", "Workload"), ("tunee", "tune")],
)
def test_a_wrong_name_says_which_one_is_meant(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"No whet attribute {name}; did you mean .*whet\.{meant}\b"):
        getattr(whet, name)


def test_the_docstring_groups_every_public_name() -> None:
    told = set(re.findall(r"\b[a-zA-Z_]\w+\b", (whet.__doc__ or "").partition("By what they are for:")[2]))
    assert set(whet.__all__) - {"__version__"} <= told


def test_results_are_shown_in_one_short_line() -> None:
    claim = judge([1.0, 1.1, 1.02], [1.0, 1.0, 1.0])
    point = Point(target="a.py:f", sizes={"batch": 8}, latency_ms=1.23456789)
    shown = {
        repr(WORKLOAD): "InferenceWorkload('model', Linear, 1 batch of 4)",
        repr(claim): "Claim(inconclusive, ratio 1.04, 95% 0.917–1.18, p 1, 3 pairs)",
        repr(point): "Point(a.py:f (batch 8): done, 1.23 ms)",
        repr(Sweep(fingerprint="", machine={}, points=[point])): "Sweep(Point(a.py:f (batch 8): done, 1.23 ms))",
        repr(
            Gate(outcome="pass", compared="a against b", tolerance=0.02, fingerprint="", verdicts=[])
        ): "Gate(pass, a against b)",
    }
    for found, wanted in shown.items():
        assert found == wanted


def test_a_training_is_shown_without_its_data() -> None:
    training = whet.TrainingWorkload(
        model=MODEL, loss=lambda model, x: model(x).sum(), optimizer=torch.optim.SGD, batches=[X]
    )
    assert repr(training) == f"TrainingWorkload({training.name!r}, Linear)"
