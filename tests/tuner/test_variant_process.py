"""What a process of the finals measures, the original and what was saved; and who comes to the finals at all."""

import sys
from pathlib import Path
from typing import Any

import pytest
import targets
import torch
from fake_search import facts
from safetensors.torch import save_file

from whet.comparison.run import Run
from whet.core.workload import Workload, examine
from whet.measure.isolate import Failure, FailureKind, Function, Outcome, run_isolated
from whet.techniques.technique import Candidate
from whet.tuner.goal import Goal
from whet.tuner.known_target import INPUTS, read_inputs, write_inputs
from whet.tuner.model_kind import hold_only_the_model
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.trial_context import TrialContext
from whet.tuner.variant_process import VariantRequest, measure_variant
from whet.tuner.verdict import is_beaten
from whet.workloads.handover import PICKLED, hand_over
from whet.workloads.target import open_target


def test_the_original_and_an_artefact_are_measured_on_the_same_inputs(tmp_path: Path) -> None:
    model, inputs = targets.conv()
    workload = Workload(model=model, inputs=inputs)
    hand_over(workload, tmp_path / "workload")
    target = f"{PICKLED}{tmp_path / 'workload'}"
    examined = examine(workload)
    write_inputs(examined, tmp_path / INPUTS)
    for read, batch in zip(read_inputs(tmp_path / INPUTS), examined.flat_inputs, strict=True):
        assert all(map(torch.equal, read, batch))
    artefact = Candidate.original(examined).save(tmp_path / "artefact")
    for directory in (None, artefact):
        request = VariantRequest(
            target=target, signature=examined.signature, directory=directory, inputs=tmp_path / INPUTS, budget_s=0.05
        )
        found = measure_variant(request)
        assert found.p90_s is not None and 0 < found.seconds <= found.p90_s
        assert found.num_calls >= 3
        assert found.peak_bytes > found.live_tensor_bytes > 0


def test_inputs_come_back_to_where_they_were(tmp_path: Path) -> None:
    save_file({"0.0": torch.ones(2), "0.1": torch.ones(3)}, tmp_path / INPUTS, {"0.0": "cpu", "0.1": "meta"})
    ((first, second),) = read_inputs(tmp_path / INPUTS)
    assert (first.device.type, second.device.type) == ("cpu", "meta")


NET = """
import torch

class Net(torch.nn.Linear):
    pass
"""


def test_a_model_in_memory_may_come_from_a_file_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "net_of_the_script.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path / "scripts")
    net = __import__("net_of_the_script")
    sys.modules.pop(net.__name__)  # and back, until the test ends
    monkeypatch.setitem(sys.modules, net.__name__, net)
    workload = Workload(model=net.Net(4, 4).eval(), inputs=[torch.randn(1, 4)])
    hand_over(workload, tmp_path / "workload")
    examined = examine(workload)
    write_inputs(examined, tmp_path / INPUTS)
    request = VariantRequest(
        target=f"{PICKLED}{tmp_path / 'workload'}",
        signature=examined.signature,
        inputs=tmp_path / INPUTS,
        budget_s=0.01,
    )
    outcome = run_isolated(measure_variant, request, tmp_path / "exchange", time_limit_s=100)
    assert outcome.failure is None
    found = outcome.answer(Run)
    assert found is not None and found.seconds > 0


@pytest.mark.parametrize(
    ("objective", "interval", "beaten"),
    [
        ("latency", (0.2, 0.4), True),
        ("throughput", (0.2, 0.4), True),
        ("latency", (0.7, 0.95), False),  # processes differ by as much
        ("latency", (1.1, 1.3), False),
        ("latency", None, False),
        ("size", (0.2, 0.4), False),
        ("memory", (0.2, 0.4), False),
    ],
)
def test_who_is_far_slower_does_not_come_to_the_finals(objective, interval, beaten) -> None:
    record = TrialRecord(number=0, steps=[], status="done", speedup_ci95=interval)
    assert is_beaten(Goal(objective), record) is beaten


def test_an_artefact_starts_from_as_many_threads_as_the_targets_code_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = targets.conv()
    examined = examine(Workload(model=model, inputs=inputs))
    write_inputs(examined, tmp_path / INPUTS)
    artefact = Candidate.original(examined).save(tmp_path / "artefact")
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    measure_variant(VariantRequest(directory=artefact, inputs=tmp_path / INPUTS, budget_s=0.01, num_threads=3))
    assert threads == [3]


def test_a_model_in_memory_is_run_by_as_many_threads_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = targets.conv()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    hand_over(Workload(model=model, inputs=inputs), tmp_path / "workload")
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    open_target(f"{PICKLED}{tmp_path / 'workload'}")
    assert threads == [5]


@pytest.mark.parametrize(("fails", "peaks"), [("", (300, True)), ("save_original", (500, False))])
def test_memory_is_compared_without_what_the_targets_own_code_builds(
    tmp_path: Path, fails: str, peaks: tuple[int, bool]
) -> None:
    """Where the original can be saved, that is: its own process holds the data of its quality as well."""

    def run(function: Function, request: Any, directory: Path, time_limit_s: float) -> Outcome:
        if function.__name__ == fails:
            return Outcome(None, Failure(FailureKind.CRASH, "lost"), 0.1, 0)
        if function.__name__ != "measure_variant":
            return Outcome({}, None, 0.1, 0)
        return Outcome({"seconds": 1.0, "peak_bytes": 300 if request.directory else 500}, None, 0.1, 0)

    baseline = MeasuredVariant(latency_ms=1.0, throughput_per_s=1.0, peak_bytes=500, size_bytes=1)
    is_fair = hold_only_the_model(TrialContext("x", facts(), tmp_path, run), baseline)
    assert (baseline.peak_bytes, is_fair) == peaks
