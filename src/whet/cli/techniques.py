"""List the optimisations that whet knows, and say which of them can run on this machine: `whet techniques`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from whet.fast_import import large_imports
from whet.techniques.names import check_technique


def techniques(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="show one technique's card")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """List the techniques that whet tune chooses from, and say which of them can run on this machine.

    With NAME, show the technique's card: what it does, when it helps and hurts, its options, and what was measured.
    """
    if name is not None:
        check_technique(name)
    with large_imports():
        from rich.console import Console

        from whet.cli.technique_tables import show_card, show_list
        from whet.techniques import FOLLOWING
        from whet.techniques.catalogue import describe_technique, list_techniques
    console = Console(stderr=as_json, highlight=False)
    if name is not None:
        technique = describe_technique(name)
        if as_json:
            print(json.dumps(asdict(technique)))
        else:
            show_card(console, technique)
        return
    with console.status("asking every technique about this machine"):
        found = list_techniques()
    if as_json:
        print(json.dumps({"techniques": [asdict(technique) for technique in found], "planned": FOLLOWING}))
    else:
        show_list(console, found)
