"""Print one page for a bug report (whet doctor).

This file imports the standard library alone, so that it can say which package is broken.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module

from whet.cli.examples import lines
from whet.cli.usage import Parser
from whet.errors import reason

_FINE, _BROKEN = 0, 1
_ABOUT = """Say what is installed here, what works, and what is missing for which command.

The output can go into a bug report: it names neither users nor hosts, and shows
no secrets. The exit code is 0 if whet can tune here, and 1 if something
essential is broken."""


def main(arguments: Sequence[str]) -> int:
    parser = parser_of()
    given = parser.parse_args(list(arguments))
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _where(error: ImportError) -> str:
    """Return the module whose import failed."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
