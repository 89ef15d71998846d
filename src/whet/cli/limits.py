"""Measure what this machine can do at best: whet limits."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from whet.machine import Limits, Machine, Topology, describe, find_topology
from whet.machine.measured_limits import limits as measured_limits
from whet.machine.notebook import COLUMNS, rate_rows


def limits(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="measure again; the best figures of all measurements count")
    ] = False,
) -> None:
    """Show what this machine can do at best. The limits are measured once, then read from the cache."""
    console = Console(stderr=as_json)
    machine = describe()
    topology = find_topology()
    with console.status("measuring the machine's limits, about ten seconds"):
        measured = measured_limits(refresh=refresh, machine=machine)
    if as_json:
        facts = {
            "fingerprint": machine.fingerprint,
            "machine": machine.facts(),
            "topology": asdict(topology),
            "limits": [asdict(m) for m in measured],
        }
        print(json.dumps(facts))
        return
    console.print(_facts(machine))
    if topology.gpus or len(topology.nodes) > 1:
        console.print(_parts(topology))
    for found in measured:
        console.print(_rates(found))
        for note in found.notes:
            console.print(f"note: {note}", markup=False, highlight=False)


def _facts(machine: Machine) -> Table:
    table = Table(title=f"machine {machine.fingerprint}", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("chip", machine.chip)
    table.add_row("instructions", ", ".join(machine.isa) or "not known")
    table.add_row("cores", f"{machine.cores}, of which torch uses {machine.torch_threads}")
    table.add_row("memory", f"{machine.memory_bytes / 2**30:.0f} GiB")
    if machine.has_cuda:
        table.add_row("gpu", f"{machine.gpu}, driver {machine.gpu_driver}")
    table.add_row("torch", machine.torch)
    return table


def _parts(topology: Topology) -> Table:
    table = Table(title="topology", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
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


def _rates(limits: Limits) -> Table:
    table = Table(title=f"measured limits, {limits.device}", title_justify="left")
    name, *figures = COLUMNS
    table.add_column(name)
    for figure in figures:
        table.add_column(figure, justify="right")
    for row in rate_rows(limits):
        table.add_row(*row)
    return table
