"""Measure what this machine can do at best: whet limits."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from whet.measure.fast_import import large_imports


def limits(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="measure again; the best figures of all measurements count")
    ] = False,
) -> None:
    """Show what this machine can do at best. The limits are measured once, then read from the cache."""
    with large_imports():
        from rich.console import Console

        from whet.cli.limits_tables import facts_table, parts_table, rates_table
        from whet.measure.machine import describe, find_topology
        from whet.measure.machine.measured_limits import limits as measured_limits
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
    console.print(facts_table(machine))
    if topology.gpus or len(topology.nodes) > 1:
        console.print(parts_table(topology))
    for found in measured:
        console.print(rates_table(found))
        for note in found.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
