"""The watcher bills what a step waits for to communication, and tells it from what runs beside other work."""

from functools import cache
from typing import Any

import collective_targets
import pytest
import torch
from collective_targets import LATE_S, WORK_S
from many import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from whet.profiling.step.communication import InFlight
from whet.profiling.step.watch import watch

LATE_MS, WORK_MS = LATE_S * 1e3, WORK_S * 1e3
KINDS = {
    "blocking": {"distributed.all_reduce"},
    "asynchronous": {"distributed.all_reduce", "distributed.Work.wait"},
    "hidden": {"distributed.all_reduce", "distributed.Work.wait", "distributed.barrier"},
    "ddp": {"DistributedDataParallel"},
    "fsdp": {"distributed.all_gather_single", "distributed.reduce_scatter_single"},
    "dtensor": {"distributed.all_gather_single", "distributed.wait_tensor"},
    "pipeline": {"distributed.Work.wait"},
}


@cache
def seen() -> list[dict[str, dict[str, Any]]]:
    """What each of two processes saw of each kind."""
    found: list[dict[str, dict[str, Any]]] = on_ranks(collective_targets.watched, 2, list(KINDS))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_process_in_time_waits_for_the_late_one(kind: str) -> None:
    first, second = (one[kind] for one in seen())
    waiting, late, expected = (second, first, 2 * LATE_MS) if kind == "hidden" else (first, second, LATE_MS)
    assert 0.75 * expected < waiting["exposed"] < 3 * expected
    assert late["least"] < LATE_MS / 2  # the transfer itself, which takes long on a busy machine
    assert first["sync"] == second["sync"] == 0
    assert first["calls"] == second["calls"] == KINDS[kind]
    assert all("collective_targets.py" in line for line in first["lines"])
    assert waiting["verdict"] == "communication-bound"
    assert "is spent in waiting for other processes" in waiting["text"].replace("\n", " ")


def test_what_runs_beside_other_work_is_told_apart() -> None:
    first, second = seen()
    assert 0.9 * WORK_MS < first["asynchronous"]["overlapped"] < 5 * WORK_MS
    assert 0.9 * LATE_MS < first["hidden"]["overlapped"] < 2.5 * LATE_MS  # it ends long before it is waited for
    for one in (first, second):
        assert 0.9 * WORK_MS < one["ddp"]["overlapped"] < 5 * WORK_MS
        assert one["blocking"]["overlapped"] == one["fsdp"]["overlapped"] == 0
        assert one["dtensor"]["overlapped"] < WORK_MS / 2
    assert "communication runs for" in first["hidden"]["text"]


def test_several_collectives_at_once_count_once_and_waits_do_not() -> None:
    now = [0]
    flying = InFlight(lambda: now[0])

    def passes(ns: int) -> None:
        now[0] += ns

    passes(5)
    flying.begin(1)
    passes(10)
    flying.begin(2)
    passes(100)
    flying.pause()  # the loop waits for the first
    passes(1000)
    flying.end(1)
    flying.resume()
    passes(10_000)
    flying.end(2)
    passes(100_000)
    flying.end(7)  # which never began
    flying.resume()
    passes(1_000_000)
    assert flying.overlapped_ns == 10_110


def test_one_process_alone_pays_nothing_and_reads_nothing_of_communication() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = (DistributedDataParallel.forward, torch.distributed.Work.wait)
    steps = watch(model, optimizer, [torch.randn(2, 4)] * 6)
    for batch in steps:
        assert (DistributedDataParallel.forward, torch.distributed.Work.wait) == before
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    report = steps.report()
    assert report.overlapped_ms is None
    assert "communication" not in str(report)
