"""What processes do in the tests of the bytes on the wire: make steps, and count what they send in the last one."""

from typing import Any

import torch
from compression_jobs import made, rows_of
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from whet.parallel.ranks import Ranks
from whet.parallel.wire import WireCount


def sent(
    ranks: Ranks, plans: list[dict[str, Any]], steps: int = 3, local_size: int | None = None
) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Return the bytes and the calls of the last step by kind, of each plan. DDP fills its buckets anew in step 2."""
    found = []
    for plan in plans:
        trainer = made(ranks, plan, "float32", local_size=local_size)
        for step in range(steps - 1):
            trainer.step_on([rows_of(ranks, step)])
        with WireCount() as wire:
            trainer.step_on([rows_of(ranks, steps - 1)])
        assert not wire.uncounted
        found.append((dict(wire.num_bytes), dict(wire.calls)))
    return found


def sent_in_calls(ranks: Ranks) -> list[dict[str, int]]:
    """Return the bytes of an all-to-all, a send to the next process, and a redistribution of a DTensor."""
    found = []
    x, y = torch.zeros(12), torch.zeros(12)
    with WireCount() as wire:
        distributed.all_to_all_single(y, x)
        distributed.barrier()
    found.append(dict(wire.num_bytes))
    others = [(ranks.rank + 1) % ranks.world_size, (ranks.rank - 1) % ranks.world_size]
    with WireCount() as wire:
        calls = [distributed.P2POp(distributed.isend, x, others[0]), distributed.P2POp(distributed.irecv, y, others[1])]
        for work in distributed.batch_isend_irecv(calls):
            work.wait()
    found.append(dict(wire.num_bytes))
    mesh = init_device_mesh("cpu", (ranks.world_size,))
    part = DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)])
    with WireCount() as wire:
        part.redistribute(placements=[Replicate()]).to_local().sum().item()
    found.append(dict(wire.num_bytes))
    return found
