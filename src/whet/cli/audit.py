"""Find what makes PyTorch code slow, say what it may cost, and fix it: whet audit. It is whet-audit, and --measure."""

import argparse
from collections.abc import Sequence
from importlib import import_module

from whet.cli.examples import EXAMPLES
from whet.errors import OptionError
from whet.scripts.auditing import PROGRAM, errors_of_whet
from whet_audit import cli

_RUN = "whet.cli.audit_run"  # imported once the arguments are right
_ABOUT = """Find what makes PyTorch code slow, say what it may cost, and fix it.

Tests and examples are left out below the directories that you name; name them
to have them audited. The exit code is 0 if nothing is found, 1 if findings are
left, 2 on wrong use or if a file cannot be read, and 3 if the machine was too
busy for --measure."""


def main(arguments: Sequence[str]) -> int:
    own, passed_on = _split_at_dashes(arguments)
    with errors_of_whet():
        given = _parser().parse_intermixed_args(own)
        given.arguments = passed_on
        if given.explain is None:
            _check_measuring(given)
        cli.check(given, PROGRAM)
        return int(import_module(_RUN).run(given))


def _check_measuring(given: argparse.Namespace) -> None:
    """Raise OptionError where the arguments of --measure do not fit together."""
    if given.measure and len(given.paths) > 1:
        raise OptionError("--measure runs one training script: name it alone, as whet audit train.py --measure -- ARGS")
    if given.arguments and not given.measure:
        raise OptionError("what stands after -- is for the script that --measure runs: give --measure as well")


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(PROGRAM, _ABOUT, EXAMPLES["audit"])
    add = parser.add_argument
    add("--measure", action="store_true", help="run the script (arguments after --) with each fix, in a copy, in pairs")
    add("--steps", metavar="N", type=int, default=12, help="with --measure: optimiser steps of each process (12)")
    add(
        "--on-busy",
        metavar="HOW",
        default="wait",
        help="with --measure, on a busy machine: wait, inconclusive or go-on",
    )
    add(
        "--busy-wait",
        metavar="TIME",
        default="2m",
        help="with --measure: how long to wait for a quiet machine in all (2m)",
    )
    add(
        "--budget",
        metavar="TIME",
        default="10m",
        help="with --measure: the time for all measurements, such as 90s or 10m (10m)",
    )
    return parser


def _split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    given = list(arguments)
    if "--" not in given:
        return given, []
    place = given.index("--")
    return given[:place], given[place + 1 :]
