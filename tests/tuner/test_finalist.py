"""What a process of the finals measures, the original and what was saved; and who comes to the finals at all."""

from pathlib import Path

import pytest
import targets
import torch

from whet.techniques import Candidate
from whet.tuner.finalist import INPUTS, PICKLED, measure_finalist, read_inputs, write_inputs
from whet.tuner.result import TrialRecord
from whet.tuner.search import Goal
from whet.tuner.tuning import _hand_over, _is_beaten
from whet.workload import Workload, examine


def test_the_original_and_an_artefact_are_measured_on_the_same_inputs(tmp_path: Path) -> None:
    model, inputs = targets.conv()
    workload = Workload(model=model, inputs=inputs)
    _hand_over(workload, tmp_path / "workload")
    target = f"{PICKLED}{tmp_path / 'workload'}"
    subject = examine(workload)
    write_inputs(subject, tmp_path / INPUTS)
    for read, batch in zip(read_inputs(tmp_path / INPUTS), subject.flat_inputs, strict=True):
        assert all(map(torch.equal, read, batch))
    artefact = Candidate.original(subject).save(tmp_path / "artefact")
    for directory in (None, str(artefact)):
        found = measure_finalist(target, directory, str(tmp_path / INPUTS), budget_s=0.05)
        assert 0 < found["latency_ms"] <= found["p90_ms"]
        assert found["num_calls"] >= 3
        assert found["peak_bytes"] > found["live_tensor_bytes"] > 0


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
    assert _is_beaten(Goal(objective), record) is beaten
