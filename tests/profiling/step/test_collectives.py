"""The watcher sees communication: PyTorch's collectives, the functional ones of DTensor, and those of FSDP2."""

from pathlib import Path

import collective_targets
import pytest

from whet.measure.isolate import Job, run_together

PATH = {"PYTHONPATH": str(Path(__file__).parent)}


@pytest.mark.parametrize("kind", ["all_reduce", "functional", "fsdp"])
def test_communication_is_seen(kind: str, tmp_path: Path) -> None:
    jobs = [Job(collective_targets.train, {"kind": kind}, tmp_path / str(rank), PATH) for rank in range(2)]
    outcomes = run_together(jobs, time_limit_s=120)
    for outcome in outcomes:
        assert outcome.failure is None, outcome.failure
        assert outcome.value is not None
        assert any("distributed." in site for site in outcome.value["sites"]), outcome.value["sites"]
