"""The statistics on the machine's own noise: a model against itself is no gain."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import targets
import torch

from whet.errors import ModelError
from whet.measure.clock import measure_pairs
from whet.measure.stats import Verdict, compare, noise_floor
from whet.tuner import finals
from whet.tuner.finals import run_finals
from whet.tuner.result import Point, TrialRecord
from whet.tuner.search import Workbench, isolated


def test_twenty_real_comparisons_of_a_model_with_itself_give_no_gain() -> None:
    torch.manual_seed(0)
    model, (x,) = targets.conv()
    gc.freeze()  # each measurement collects garbage first, through all that other tests have left
    gains = 0
    for seed in range(20):
        pairs = measure_pairs([lambda: model(x)], [lambda: model(x)], budget_s=0.05, num_pairs=8, seed=seed)
        comparison = compare(pairs.first, pairs.second, noise=noise_floor([pairs.first]))
        gains += comparison.verdict is Verdict.PASS
    assert gains <= 1  # 5 % of 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Who was measured, in order: trial 0 a little slower than the original (-1), which fails where `fails` says so."""
    asked: list[int] = []

    def measure(bench: "Fails", contender: TrialRecord | None) -> dict[str, float] | None:
        number = -1 if contender is None else contender.number
        asked.append(number)
        if number == -1 and bench.fails(asked.count(-1)):
            return None
        return {"latency_ms": {-1: 10.0, 0: 11.0, 1: 5.0}[number] + 0.01 * (len(asked) % 5)}

    def point(bench: object, contender: TrialRecord | None, runs: list[dict[str, float]]) -> Point:
        times = [run["latency_ms"] for run in runs]
        return Point(latency_ms=times[0], throughput_per_s=1.0, peak_bytes=0, size_bytes=0, process_latencies_ms=times)

    monkeypatch.setattr(finals, "_measure", measure)
    monkeypatch.setattr(finals, "_point", point)
    return asked


@dataclass
class Fails:
    """The part of a workbench: whether the original's n-th process, from 1 on, fails."""

    fails: Callable[[int], bool] = lambda n: False


SLOWER, FASTER = (TrialRecord(number=i, steps=[], status="done") for i in (0, 1))


def test_who_loses_three_rounds_is_judged_by_those(asked: list[int]) -> None:
    _, points = run_finals(Fails(), [SLOWER, FASTER], deadline=0.0)  # type: ignore[arg-type]
    assert [len(p.process_latencies_ms) for p in points] == [3, 6]
    assert [p.verdict for p in points] == ["fail", "pass"]
    asked.clear()
    run_finals(Fails(), [SLOWER], deadline=0.0)  # type: ignore[arg-type]
    assert sorted(asked) == [-1, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("failing", [{1}, {1, 2}, {2, 6}, {3}, {1, 2, 3, 4, 5}])
@pytest.mark.usefixtures("asked")
def test_a_round_in_which_the_original_fails_is_no_pair(failing: set[int]) -> None:
    bench = Fails(lambda n: n in failing)
    baseline, (slower, faster) = run_finals(bench, [SLOWER, FASTER], deadline=0.0)  # type: ignore[arg-type]
    num_pairs = min(6, 8 - len(failing))  # of eight rounds at most, as many as make six pairs
    assert len(baseline.process_latencies_ms) == len(faster.process_latencies_ms) == num_pairs
    assert len(slower.process_latencies_ms) == 3
    assert slower.speedup < 1 < faster.speedup
    assert slower.verdict != "pass"


@pytest.mark.usefixtures("asked")
def test_an_original_that_always_fails_is_an_error() -> None:
    with pytest.raises(ModelError, match="failed each time"):
        run_finals(Fails(lambda n: True), [FASTER], deadline=0.0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_twenty_real_comparisons_between_processes_give_no_gain(tmp_path: Path) -> None:
    run = isolated(None)
    target = f"{targets.HERE}:conv"
    facts = run("look", {"target": target, "directory": str(tmp_path)}, tmp_path / "look", 120).value
    assert facts is not None
    bench = Workbench(target, facts, tmp_path, run)
    # Two records of one and the same artefact: any difference between them is noise.
    replayed = run(
        "replay",
        {"target": target, "steps": [], "directory": str(bench.artefact(0))},
        tmp_path / "a",
        120,
    )
    assert replayed.failure is None
    bench.artefact(1).parent.mkdir()
    bench.artefact(1).symlink_to(bench.artefact(0))
    gains = 0
    for seed in range(20):  # about 40 seconds each
        records = [TrialRecord(number=i, steps=[], status="done") for i in (0, 1)]
        _, (first, second) = run_finals(bench, records, deadline=0.0, seed=seed)
        rounds = list(zip(first.process_latencies_ms, second.process_latencies_ms, strict=False))  # one may have lost
        a, b = zip(*rounds, strict=True)
        gains += compare(a, b, noise=noise_floor([first.process_latencies_ms])).verdict is Verdict.PASS
    assert gains <= 1
