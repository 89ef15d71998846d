"""Measure what this machine can do at best: whet limits."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.measure.fast_import import large_imports

if TYPE_CHECKING:
    from rich.console import Console

    from whet.measure.machine import Machine
    from whet.parallel.machine_links import MachineLinks


def limits(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="measure again; the best figures of all measurements count")
    ] = False,
    links: Annotated[
        bool, typer.Option("--links", help="also time what processes on this machine send each other, a minute")
    ] = False,
) -> None:
    """Show what this machine can do at best. The limits are measured once, then read from the cache."""
    with large_imports():
        from rich.console import Console

        from whet.cli.limits_tables import facts_table, links_table, parts_table, rates_table
        from whet.measure.machine import describe, find_topology
        from whet.measure.machine.measured_limits import limits as measured_limits
    console = Console(stderr=as_json)
    machine = describe()
    topology = find_topology()
    with console.status("measuring the machine's limits, about ten seconds"):
        measured = measured_limits(refresh=refresh, machine=machine)
    timed = _timed_links(machine, console, refresh=refresh) if links else []
    if as_json:
        facts: dict[str, Any] = {
            "fingerprint": machine.fingerprint,
            "machine": machine.facts(),
            "topology": asdict(topology),
            "limits": [asdict(m) for m in measured],
        }
        if links:
            facts["links"] = [found.model_dump(mode="json") for found in timed]
        print(json.dumps(facts))
        return
    console.print(facts_table(machine))
    if topology.gpus or len(topology.nodes) > 1:
        console.print(parts_table(topology))
    for found in measured:
        console.print(rates_table(found))
        for note in found.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
    for between in timed:
        console.print(links_table(between))
        if between.busy:
            console.print(
                f"note: {between.busy} meanwhile, so these may take too long; whet measures again on a quiet machine",
                markup=False,
                highlight=False,
            )


def _timed_links(machine: "Machine", console: "Console", *, refresh: bool) -> "list[MachineLinks]":
    with large_imports():
        from whet.parallel.machine_links import all_links
    with console.status("timing what processes send each other, about a minute"):
        return all_links(machine, refresh=refresh)
