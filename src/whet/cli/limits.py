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

_NAMES = {"tfloat32": "tf32", "float8_e4m3fn": "float8"}


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
    table.add_column("limit")
    table.add_column("reached", justify="right")
    table.add_column("of float32", justify="right")
    for dtype, rate in limits.gemm.items():
        ratio = rate / limits.gemm["float32"] if "float32" in limits.gemm else float("nan")
        table.add_row(f"matrix product, {_NAMES.get(dtype, dtype)}", f"{rate / 1e9:,.0f} GFLOP/s", f"{ratio:.2f}x")
    table.add_row("read from memory", f"{limits.read_bandwidth / 1e9:,.0f} GB/s", "")
    for size, rate in limits.cached_bandwidth[::3]:
        table.add_row(f"read {_size(size)} again and again", f"{rate / 1e9:,.0f} GB/s", "")
    table.add_row("call the smallest operator", f"{limits.operator_s * 1e6:.1f} µs", "")
    return table


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.0f} KiB"
