"""Sum gradients within each machine first, and then between machines, so that the network carries less."""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed
from torch.futures import Future

from whet.errors import OptionError
from whet.parallel.ranks import Ranks

_MACHINE = "GROUP_RANK"  # torchrun's number of the machine


class MachineSums:
    """Sum a tensor over all processes of a group that spans machines.

    Each of the L processes of a machine sums one L-th of the tensor within the machine, adds it to that of the other
    machines, and shares the result within the machine. So the network carries a tensor once for each machine.
    """

    def __init__(self, within: Any, between: Any) -> None:
        self._within, self._between = within, between

    def __call__(self, x_N: Tensor) -> Future[Tensor]:
        """Sum a tensor in place; where the backend is gloo, it is summed when this returns."""
        rest = -len(x_N) % self._within.size()
        whole_P = F.pad(x_N, (0, rest)) if rest else x_N
        part = torch.empty(len(whole_P) // self._within.size(), dtype=x_N.dtype, device=x_N.device)
        distributed.reduce_scatter_single(part, whole_P, group=self._within)
        distributed.all_reduce(part, group=self._between)
        distributed.all_gather_single(whole_P, part, group=self._within)
        if rest:
            x_N.copy_(whole_P[: len(x_N)])
        return done(x_N)


def done(value: Tensor) -> Future[Tensor]:
    """Return a future whose value is there."""
    future: Future[Tensor] = Future(devices=[value.device] if value.is_cuda else None)
    future.set_result(value)
    return future


def machine_sums(ranks: Ranks, peers: Sequence[Sequence[int]]) -> MachineSums:
    """Return what sums over the processes that see other rows, of which each process calls this.

    Args:
        peers: The ranks of each such group.

    Raises:
        OptionError: The processes do not lie on machines as that needs.
    """
    machines = ranks.gather("the machines", os.environ.get(_MACHINE))
    groups = machine_groups(peers, machines)
    within, between = (distributed.new_subgroups_by_enumeration(one)[0] for one in groups)
    return MachineSums(within, between)


def machine_groups(
    peers: Sequence[Sequence[int]], machines: Sequence[str | None]
) -> tuple[list[list[int]], list[list[int]]]:
    """Divide groups of ranks into those on one machine, and into those with one rank on each machine.

    Args:
        peers: Groups that have no rank in common.
        machines: The machine of each rank; None where it is not known.

    Raises:
        OptionError: There is one machine, or a group has one rank on a machine, or more on one than on another.
    """
    if None in machines:
        raise OptionError(
            "parallel.hierarchical_all_reduce needs to know which processes share a machine; start them with torchrun"
        )
    within: list[list[int]] = []
    between: list[list[int]] = []
    for group in peers:
        local = [[rank for rank in group if machines[rank] == one] for one in sorted({str(machines[r]) for r in group})]
        sizes = [len(one) for one in local]
        if len(local) < 2 or min(sizes) < 2:
            raise OptionError(
                "parallel.hierarchical_all_reduce sums within machines and then between them, and the "
                f"{len(group)} processes that see other rows are {' + '.join(map(str, sizes))} by machine; leave it out"
            )
        if len(set(sizes)) > 1:
            raise OptionError(
                "parallel.hierarchical_all_reduce needs as many processes on each machine, and there are "
                f"{' + '.join(map(str, sizes))}; start equally many, or leave it out"
            )
        within += local
        between += [list(column) for column in zip(*local, strict=True)]
    return within, between
