"""Print one page for a bug report (whet doctor).

This file imports the standard library alone, so that it can say which package is broken.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module

from whet.cli.examples import lines
from whet.cli.usage import Parser
from whet.errors import reason
from whet.measure.fast_import import import_large

_FINE, _BROKEN = 0, 1
_ABOUT = """Say what is installed here, what works, and what is missing for which command.

The output can go into a bug report: it names neither users nor hosts, and shows
no secrets. The exit code is 0 if whet can tune here, and 1 if something
essential is broken.

Under torchrun, it compares the processes instead: versions, clocks, links, and
which are slow. That page and --nodes name hosts."""


def main(arguments: Sequence[str]) -> int:
    parser = parser_of()
    given = parser.parse_args(list(arguments))
    if given.nodes is not None:
        return _look_at_nodes(given.nodes, as_json=given.json)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # under torchrun
        return _compare_ranks(as_json=given.json)
    try:
        doctor = import_module("whet.installation.doctor").doctor
    except ImportError as error:
        package = (error.name or _where(error)).partition(".")[0]
        sentence = f"whet cannot tune here: {package} does not import: {reason(error)}."
        if given.json:
            print(json.dumps({"can_tune": False, "sentence": sentence}))
        else:
            print(f"{sentence}\n-> pip install --force-reinstall {package}")
        return _BROKEN
    found = doctor()
    if given.json:
        print(json.dumps({"can_tune": found.can_tune, "sentence": found.sentence, **found.model_dump(mode="json")}))
    else:
        print(found.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    return _FINE if found.can_tune else _BROKEN


def parser_of() -> argparse.ArgumentParser:
    parser = Parser(
        prog="whet doctor",
        description=_ABOUT,
        epilog="\n".join(lines("doctor")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--nodes",
        metavar="HOST:PORT,...",
        help="say whether these addresses can be reached from here, and whether this machine's are free",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _look_at_nodes(addresses: str, *, as_json: bool) -> int:
    nodes = import_module("whet.installation.nodes")
    found = nodes.nodes(addresses)
    print(json.dumps([one.model_dump(mode="json") for one in found]) if as_json else nodes.text(found))
    return _FINE if all(one.is_fine for one in found) else _BROKEN


def _compare_ranks(*, as_json: bool) -> int:
    """Compare the processes that torchrun started; the first one prints what they found."""
    torch = import_large("torch")
    checkup = import_module("whet.parallel.rank_checkup").checkup
    joining = import_module("whet.parallel.joining")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    with joining.joined(kind) as ranks:
        device = joining.own_device(kind, ranks)
        if kind == "cuda":
            torch.cuda.set_device(device)
        found = checkup(ranks, device)
    if ranks.is_first:
        page = {"sentence": found.sentence, **found.model_dump(mode="json")}
        print(json.dumps(page) if as_json else found.text())
    return _FINE


def _where(error: ImportError) -> str:
    """Return the module whose import failed."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
