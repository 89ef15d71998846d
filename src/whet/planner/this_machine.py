"""Describe this machine's processors as a cluster, by what was measured of them."""

from typing import get_args

from whet.errors import OptionError
from whet.measure.machine import Machine, describe, load_limits
from whet.parallel.machine_links import NUM_PROCESSES, load_links
from whet.planner.cluster import Chip, Cluster, Host, Link, Number
from whet.planner.clusters import chips
from whet.ui.figures import counted

_LIKE, _CORES = "2x-epyc-9654", 192  # the chip whose power for a core is taken, and its cores


def this_machine(number: int, *, refresh: bool = False) -> Cluster:
    """Return this machine as a single node, in which a chip is one process with an equal share of the cores.

    The limits of the machine and the links between its processes are measured where they are not known, which takes
    half a minute. GPUs are left out: a cluster of GPUs has a name or a file.

    Args:
        number: The processes. More than there are cores share them.
        refresh: Whether to measure again. The best of all measurements counts.

    Raises:
        OptionError: There are more processes than this machine can be asked for.
        MachineError: The machine cannot be measured.
    """
    machine = describe()
    most = max(NUM_PROCESSES[-1], machine.cores)
    if not 1 <= number <= most:
        raise OptionError(
            f"this machine has {counted(machine.cores, 'core')}: ask for 1 to {most} processes; got {number}"
        )
    chip = _chip(machine, number, refresh=refresh)
    return Cluster(
        name="this machine",
        chip=chip,
        chips_per_node=number,
        num_chips=number,
        host=Host(
            name="this machine",
            source="the processes compute on the host's own processors",
            memory_bytes=0,
            link=Link(name="memory", source=chip.source, bytes_per_s=chip.bytes_per_s, latency_s=0),
            power_w=0,
        ),
        inside=_link(machine, number, refresh=refresh),
    )


def _chip(machine: Machine, number: int, *, refresh: bool) -> Chip:
    limits = load_limits(machine, refresh=refresh)
    like = chips()[_LIKE]
    on = f" while it was busy ({limits.busy})" if limits.busy else ""
    threads = max(1, machine.cores // number)
    return Chip(
        name=f"{machine.chip}, {counted(threads, 'thread')}",
        source=f"1/{number} of what whet limits measured of this machine{on}; power of a core as {_LIKE}'s",
        flops={kind: limits.gemm[kind] / number for kind in get_args(Number) if kind in limits.gemm},
        memory_bytes=machine.memory_bytes / number,
        bytes_per_s=limits.read_bandwidth / number,
        power_w=like.power_w / _CORES * machine.cores / number,
    )


def _link(machine: Machine, number: int, *, refresh: bool) -> Link:
    links = load_links(machine, max(2, number), refresh=refresh)
    on = f" while it was busy ({links.busy})" if links.busy else ""
    what = f"the best all-reduce and the shortest message of {links.num_processes} processes"
    return Link(
        name=links.backend,
        source=f"whet limits --links on this machine{on}: {what}",
        bytes_per_s=links.bytes_per_s,
        latency_s=links.latency_s,
        gather_bytes_per_s=links.gather_bytes_per_s,
        is_measured=True,
    )
