"""Show the machine and its limits as tables: whet limits."""

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from whet.measure.machine import Limits, Machine, Topology
from whet.measure.machine.notebook import COLUMNS, binary_size, rate_rows
from whet.ui.figures import digits, duration

if TYPE_CHECKING:
    from whet.parallel.links import Collective
    from whet.parallel.machine_links import MachineLinks


def facts_table(machine: Machine) -> Table:
    table = _facts(f"machine {machine.fingerprint}")
    table.add_row("chip", machine.chip)
    table.add_row("instructions", ", ".join(machine.isa) or "not known")
    table.add_row("cores", f"{machine.cores}, of which torch uses {machine.torch_threads}")
    table.add_row("memory", f"{machine.memory_bytes / 2**30:.0f} GiB")
    if machine.has_cuda:
        table.add_row("gpu", f"{machine.gpu}, driver {machine.gpu_driver}")
    table.add_row("torch", machine.torch)
    return table


def parts_table(topology: Topology) -> Table:
    table = _facts("topology")
    for node in topology.nodes:
        memory = f", {node.memory_bytes / 2**30:.0f} GiB" if node.memory_bytes else ""
        cores = f"{len(node.cpus)} cores" if node.cpus else "no cores"
        table.add_row(f"NUMA node {node.number}", f"{cores}{memory}")
    for gpu in topology.gpus:
        memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
        near = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
        table.add_row(f"GPU {gpu.index}", escape(f"{gpu.label}{memory}{near}"))
    if topology.nics:
        table.add_row("network", escape(", ".join(topology.nics)))
    if topology.links:
        table.add_row("links", topology.summary)
    return table


def _facts(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def rates_table(limits: Limits) -> Table:
    table = Table(title=f"measured limits, {limits.device}", title_justify="left")
    name, *figures = COLUMNS
    table.add_column(name)
    for figure in figures:
        table.add_column(figure, justify="right")
    for row in rate_rows(limits):
        table.add_row(*row)
    return table


def links_table(links: "MachineLinks") -> Table:
    """Return the times of operations between processes by size, and the best rate of each below."""
    by_operation: dict[str, list[Collective]] = {}
    for one in links.collectives:
        by_operation.setdefault(one.operation, []).append(one)
    columns = list(by_operation.values())
    table = Table(title=f"between {links.num_processes} processes, {links.backend}", title_justify="left")
    table.add_column("size")
    for operation in by_operation:
        table.add_column(operation.replace("-", " "), justify="right")
    for row in zip(*columns, strict=True):
        table.add_row(binary_size(row[0].num_bytes), *(duration(one.seconds) for one in row))
    table.add_section()
    rates = (max(one.bytes_per_s for one in column) for column in columns)
    table.add_row("best rate", *(f"{digits(rate / 1e9)} GB/s" for rate in rates))
    return table
