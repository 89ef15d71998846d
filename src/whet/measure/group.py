"""Run in a child of a group of processes that `run_together` started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE


@contextmanager
def joined(backend: str = "gloo") -> Iterator[int]:
    """Join the other processes of the group in PyTorch's default process group, for the block. Yields the rank.

    Args:
        backend: Of torch.distributed; "gloo" for CPUs, "nccl" for GPUs.
    """
    rank = int(os.environ[RANK])
    size = int(os.environ[WORLD_SIZE])
    distributed.init_process_group(backend, init_method=os.environ[RENDEZVOUS], rank=rank, world_size=size)
    try:
        yield rank
    finally:
        distributed.destroy_process_group()
