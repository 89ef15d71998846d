"""List the optimisations that whet knows, and say which of them can run on this machine: `whet techniques`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from whet.measure.fast_import import large_imports
from whet.techniques.names import check_technique

NAMES = {"name": check_technique}
"""What checks a parameter as it was typed; see typed.py."""


def techniques(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="show one technique's card")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """List the techniques that whet tune chooses from, for inference and training, and say which can run here.

    With NAME, show the technique's card: what it does, when it helps and hurts, its options, and what was measured.
    """
    with large_imports():
        from rich.console import Console

        from whet.cli.technique_tables import show_card, show_list
        from whet.techniques import FOLLOWING
        from whet.techniques.catalogue import describe_technique, list_techniques
    console = Console(stderr=as_json, highlight=False)
    if name is not None:
        # Where inference and training have a technique of the same name, both cards are shown.
        first, second = describe_technique(name), describe_technique(name, training=True)
        has_both = bool(second.loops) and not first.loops
        if as_json:
            print(json.dumps({**asdict(first), **({"training": asdict(second)} if has_both else {})}))
            return
        show_card(console, first)
        if has_both:
            console.print("\n[bold]The same name in a training recipe:[/bold]\n")
            show_card(console, second)
        return
    with console.status("asking every technique about this machine"):
        found, trained = list_techniques(), list_techniques(training=True)
    if as_json:
        lists = {"techniques": [asdict(one) for one in found], "training": [asdict(one) for one in trained]}
        print(json.dumps({**lists, "planned": FOLLOWING}))
    else:
        show_list(console, found, trained)
