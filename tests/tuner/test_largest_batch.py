"""The largest batch that fits: the search, and a probe in processes of its own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whet
from whet.errors import OptionError, TargetError
from whet.tuner.training.largest_batch import LargestBatch, ProbedBatch, largest_that_fits

SCRIPT = """
import torch
from whet import TrainingWorkload


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1024))

    def forward(self, x):
        return (x.repeat(1, 1024, 1) * self.scale).square()  # 8 MiB a sample, and more in backward


def workload(batch=4, samples=None, narrow=False):
    return TrainingWorkload(
        model=Wide(),
        loss=lambda model, x: model(x[:, :, :5] if narrow else x).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batches=[torch.ones(samples or batch, 1, 1024)],
    )


def few(batch=8):
    return workload(batch, min(batch, 9))


def one(batch=1):
    return workload(batch)


def unsized():
    return workload()


def fails(batch=4):
    return workload(batch, narrow=True)
"""


@given(limit=st.integers(0, 5000), first=st.integers(1, 3000), most=st.integers(1, 4000))
def test_the_search_ends_within_a_sixteenth(limit: int, first: int, most: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    first = min(first, most)
    found = largest_that_fits(fits, first, most)
    largest = min(limit, most)
    assert found <= largest < found + max(1, found // 16)
    assert len(asked) == len(set(asked)) <= 30, "no size is tried twice"
    assert all(1 <= size <= most for size in asked)


def test_rules_for_the_learning_rate() -> None:
    fields = {"batch": 64, "own_batch": 16, "peak_bytes": 1, "max_bytes": 2, "probes": {64: ProbedBatch()}}
    sgd, adam = (LargestBatch(optimizer=name, **fields) for name in ("SGD", "AdamW"))
    assert (sgd.rule, sgd.learning_rate_factor()) == ("linear", 4)
    assert (adam.rule, adam.learning_rate_factor()) == ("sqrt", 2)
    assert (adam.learning_rate_factor("linear"), sgd.learning_rate_factor("sqrt")) == (4, 2)
    assert LargestBatch.model_validate_json(adam.model_dump_json()) == adam


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


@pytest.mark.usefixtures("forked")
def test_sizes_are_probed_until_one_needs_too_much(script: str) -> None:
    """A sample needs 1,024 rows of 1,024 numbers of float32 at least twice: 8 MiB."""
    allowed = 150_000_000
    found = whet.largest_batch(f"{script}:workload", max_memory_bytes=allowed)
    assert found.own_batch == 4
    assert found.optimizer == "SGD"
    assert 0 < found.peak_bytes <= allowed
    assert found.probes[found.batch].reason == ""
    too_large = min(size for size, probe in found.probes.items() if probe.reason)
    assert found.batch < too_large <= found.batch + max(1, found.batch // 16)
    assert "is allowed" in found.probes[too_large].reason
    assert found.batch * 2**23 < allowed


@pytest.mark.usefixtures("forked")
def test_what_ends_the_search_is_said(script: str) -> None:
    found = whet.largest_batch(f"{script}:few", max_memory_bytes=2_000_000_000, most=12)
    assert found.batch == 9
    assert "the data gave a batch of 9 samples" in {probe.reason for probe in found.probes.values()}
    with pytest.raises(TargetError, match=r"not even a batch of one sample fits into 1\.00 MB: a step needs"):
        whet.largest_batch(f"{script}:one", max_memory_bytes=1_000_000)
    with pytest.raises(TargetError, match="whose function takes no batch"):
        whet.largest_batch(f"{script}:unsized")
    with pytest.raises(whet.WhetError, match="must match the size of tensor"):
        whet.largest_batch(f"{script}:fails")


def test_wrong_values_are_refused_before_the_work() -> None:
    for wrong in ({"share": 0.0}, {"share": 1.5}, {"most": 0}, {"max_memory_bytes": 0}):
        with pytest.raises(OptionError, match="share must be above 0"):
            whet.largest_batch("train.py:workload", **wrong)  # type: ignore[arg-type]
