"""Find what makes PyTorch code slow, say what it may cost, and fix it: whet audit."""

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from whet.auditor.formats import FORMATS
from whet.cli.examples import lines
from whet.cli.usage import Parser
from whet.errors import AuditError, OptionError
from whet.files import check_file

_RUN = "whet.cli.audit_run"  # imported once the arguments are right
_ABOUT = """Find what makes PyTorch code slow, say what it may cost, and fix it.

The exit code is 0 if nothing is found, 1 if findings are left, 2 on wrong use
or if a file cannot be read, and 3 if the machine was too busy for --measure."""


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, audit, print; returns the exit code."""
    own, passed_on = _split_at_dashes(arguments)
    given = _parser().parse_intermixed_args(own)
    given.arguments = passed_on
    if given.explain is not None:
        return int(import_module(_RUN).explain(given.explain))
    if not given.paths:
        raise OptionError("name files or directories to audit, as whet audit train.py src")
    if given.unsafe_fixes and not (given.fix or given.diff):
        raise OptionError("--unsafe-fixes widens --fix and --diff: give one of them as well")
    if given.measure and len(given.paths) != 1:
        raise OptionError("--measure runs one training script: name it alone, as whet audit train.py --measure -- ARGS")
    if given.arguments and not given.measure:
        raise OptionError("what stands after -- is for the script that --measure runs: give --measure as well")
    if not any(map(os.path.lexists, given.paths)):
        raise AuditError(f"{given.paths[0]}: there is no such file or directory")
    for path in (given.out, given.write_baseline):
        check_file(path)
    return int(import_module(_RUN).run(given, "json" if given.json else given.output_format))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="whet audit",
        description=_ABOUT,
        epilog="\n".join(lines("audit")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="*", type=Path, help="Python files, notebooks and directories")
    add("--fix", action="store_true", help="apply the fixes that keep all results the same")
    add("--unsafe-fixes", action="store_true", help="apply fixes that may change results as well")
    add("--diff", action="store_true", help="show what --fix would change; write nothing")
    add("--select", metavar="CODES", action="append", help="codes or their beginnings, as SYN,MOV101")
    add("--ignore", metavar="CODES", action="append", help="codes or their beginnings to leave out")
    add("--baseline", metavar="FILE", type=Path, help="show only findings that this file does not contain")
    add("--write-baseline", metavar="FILE", type=Path, help="write the findings, for later runs with --baseline")
    add("--output-format", metavar="FORMAT", choices=FORMATS, default="full", help=f"the format: {', '.join(FORMATS)}")
    add("--out", metavar="FILE", type=Path, help="write the report to this file instead of the terminal")
    add("--explain", metavar="CODE", help="say what a rule finds, and why")
    add("--json", action="store_true", help="short for --output-format json")
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
    """Split the arguments into whet's own and those after `--`."""
    given = list(arguments)
    if "--" not in given:
        return given, []
    place = given.index("--")
    return given[:place], given[place + 1 :]
