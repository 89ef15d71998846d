"""Workers give the batches of each step in order, whatever their number, and end with whoever takes the batches."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from whet.errors import TargetError
from whet.trainer.tokens import worker_batches
from whet.trainer.tokens.batches import PackedRows, TokenBatches
from whet.trainer.tokens.store import StoreWriter, TokenStore
from whet.trainer.tokens.worker_batches import WorkerBatches


def workers() -> list[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process.name == "whet-data"]


def numbered(step: int) -> dict[str, Tensor]:
    """Return a batch whose first number is its step. Each is larger than a pipe."""
    return {"ids": torch.arange(step, step + 20_000), "targets": torch.tensor([[step]])}


def failing(step: int) -> dict[str, Tensor]:
    if step == 3:
        raise ValueError("no such row\nand more")
    if step == 13:
        raise TargetError("text.npy is damaged; write it again")
    return numbered(step)


@settings(max_examples=10)
@given(st.integers(1, 5), st.integers(0, 50))
def test_batches_come_in_the_order_of_their_steps(num_workers: int, start: int) -> None:
    batches = WorkerBatches(numbered, num_workers, start)
    found = list(islice(batches, 12))
    batches.close()
    assert [int(batch["targets"]) for batch in found] == list(range(start, start + 12))
    for step, batch in enumerate(found, start):
        assert torch.equal(batch["ids"], numbered(step)["ids"])
    assert list(batches) == []


def rows_of_store(place: Path) -> TokenBatches:
    with StoreWriter(place / "store", "uint16") as writer:
        for length in range(2, 40):
            writer.append(range(length))
    return TokenBatches(PackedRows(TokenStore.open(place / "store"), 32), 4, seed=7)


class Read:
    """Read batches of rows by their step; a module's function, so that it can be pickled."""

    def __init__(self, rows: TokenBatches) -> None:
        self.rows = rows

    def __call__(self, step: int) -> dict[str, Tensor]:
        batch = self.rows.batch_at(step)
        return {"ids": batch.ids, "targets": batch.targets, "documents": batch.documents}


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_rows_are_those_of_one_process(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of_store(tmp_path)
    monkeypatch.setattr(worker_batches.sys, "platform", platform)  # by a fork, and by a new interpreter
    batches = WorkerBatches(Read(rows), 2, 5)
    for step, batch in enumerate(islice(batches, 7), 5):
        for name, numbers in Read(rows)(step).items():
            assert torch.equal(batch[name], numbers)
    batches.close()


@pytest.mark.parametrize(
    ("start", "said"),
    [(2, "the batch of step 4 cannot be read: ValueError: no such row$"), (12, "text.npy is damaged;")],
)
def test_an_error_of_a_worker_is_one_message(start: int, said: str) -> None:
    batches = WorkerBatches(failing, 2, start)
    assert int(next(batches)["targets"]) == start
    with pytest.raises(TargetError, match=said):
        next(batches)
    batches.close()
    assert workers() == []


def test_a_worker_that_is_killed_is_noticed() -> None:
    batches = WorkerBatches(numbered, 2)
    next(batches)
    for worker in workers():
        worker.kill()
    with pytest.raises(TargetError, match=r"was ended by SIGKILL; give more memory or fewer data\.num_workers"):
        list(batches)
    batches.close()


def test_workers_outlive_signals_to_the_group_and_end_with_their_batches() -> None:
    batches = WorkerBatches(numbered, 2)
    next(batches)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for worker in workers():
            assert worker.pid is not None
            os.kill(worker.pid, number)
    assert [int(batch["targets"]) for batch in islice(batches, 6)] == [1, 2, 3, 4, 5, 6]
    del batches  # nobody closes them
    assert workers() == []


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)", "raise ValueError"])
def test_workers_end_when_their_process_does(end: str) -> None:
    program = f"""
import os, signal, sys
import psutil
import torch
from whet.trainer.tokens.worker_batches import WorkerBatches

first = WorkerBatches(lambda step: {{"ids": torch.arange(20_000)}}, 2)
second = WorkerBatches(lambda step: {{"ids": torch.arange(3)}}, 2)
next(first), next(second)
print(*(child.pid for child in psutil.Process().children()), flush=True)
{end}
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    pids = [int(word) for word in found.stdout.split()]
    assert len(pids) == 4, found.stderr
    assert found.returncode in (-9, 3, 1)
    began = time.monotonic()
    while any(map(_is_alive, pids)):
        assert time.monotonic() - began < 60
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
