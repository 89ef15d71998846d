"""Run in a child of a group of processes that `run_together` started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE


@contextmanager
def joined(backend: str = "gloo") -> Iterator[int]:
    """Join the other processes in PyTorch's default group for the block, by "gloo" (CPUs) or "nccl"; yield the rank."""
    rank = int(os.environ[RANK])
    size = int(os.environ[WORLD_SIZE])
    distributed.init_process_group(backend, init_method=os.environ[RENDEZVOUS], rank=rank, world_size=size)
    try:
        yield rank
    finally:
        distributed.destroy_process_group()
