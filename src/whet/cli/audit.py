"""Find what makes PyTorch code slow, say what it may cost, and fix it: whet audit."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TextIO

from whet.auditor.audit import audit
from whet.auditor.card import Card
from whet.auditor.formats import FORMATS, render
from whet.auditor.report import MachineFacts, count
from whet.auditor.run import Change, Outcome, cards
from whet.auditor.settings import near
from whet.cli.audit_table import table
from whet.cli.examples import lines
from whet.cli.usage import Parser
from whet.errors import AuditError, OptionError
from whet.files import check_file, write_whole

_CLEAN, _FINDINGS, _FAILED, _INCONCLUSIVE = 0, 1, 2, 3
_REPORTS = ("markdown", "html")  # formats that give advice for the machine at hand
_ABOUT = """Find what makes PyTorch code slow, say what it may cost, and fix it.

The exit code is 0 if nothing is found, 1 if findings are left, 2 on wrong use
or if a file cannot be read, and 3 if the machine was too busy for --measure."""


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, audit, print; returns the exit code."""
    own, passed_on = _split_at_dashes(arguments)
    given = _parser().parse_intermixed_args(own)
    given.arguments = passed_on
    if given.explain is not None:
        _say(_explained(given.explain))
        return _CLEAN
    if not given.paths:
        raise OptionError("name files or directories to audit, as whet audit train.py src")
    if given.unsafe_fixes and not (given.fix or given.diff):
        raise OptionError("--unsafe-fixes widens --fix and --diff: give one of them as well")
    if given.measure and len(given.paths) != 1:
        raise OptionError("--measure runs one training script: name it alone, as whet audit train.py --measure -- ARGS")
    if given.arguments and not given.measure:
        raise OptionError("what stands after -- is for the script that --measure runs: give --measure as well")
    for path in (given.out, given.write_baseline):
        check_file(path)
    return _audit(given, "json" if given.json else given.output_format)


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


def _audit(given: argparse.Namespace, output_format: str) -> int:
    outcome = _measured(given) if given.measure else _found(given)
    machine = _machine() if output_format in _REPORTS and not given.diff else None
    report = replace(outcome.report, machine=machine)
    for line in [*report.notes, *(problem.text for problem in report.problems), *outcome.failures]:
        _say(line, sys.stderr)
    if given.diff:
        _put("\n".join(map(_diff, outcome.changes)), given.out)
        would = f"{count(report.num_fixed, 'finding')} would be fixed in {count(len(outcome.changes), 'file')}"
        _say(would, sys.stderr)
    else:
        colour = given.out is None and _has_colour(sys.stdout)
        _put(render(report, output_format, colour=colour, columns=_columns(given.out)), given.out)
    if report.impact is not None and output_format in ("full", "concise"):
        _say(table(report.impact))
    if given.out is not None:
        _say(f"{report.summary()}\nwritten to {given.out}", sys.stderr)
    if given.write_baseline is not None:
        if given.measure:
            outcome.write_baseline(given.write_baseline)
        _say(f"{count(len(outcome.findings), 'finding')} written to {given.write_baseline}", sys.stderr)
    if report.problems or outcome.failures:
        return _FAILED
    if report.impact is not None and report.impact.busy:
        return _INCONCLUSIVE
    is_left = report.findings or (given.diff and outcome.changes)
    return _FINDINGS if is_left and given.write_baseline is None else _CLEAN


def _found(given: argparse.Namespace) -> Outcome:
    return audit(
        given.paths,
        select=_split(given.select) if given.select else None,
        ignore=_split(given.ignore or []),
        baseline=given.baseline,
        write_baseline=given.write_baseline,
        fix=given.fix or given.diff,
        unsafe_fixes=given.unsafe_fixes,
        write=not given.diff,
    )


def _measured(given: argparse.Namespace) -> Outcome:
    """Measure the fixes of a script. The imports are here because they need torch."""
    patience_of = import_module("whet.measure.quiet").Patience
    on_busy = import_module("whet.measure.quiet").OnBusy.checked(given.on_busy)
    seconds = import_module("whet.units").seconds
    outcome: Outcome = import_module("whet.fix_trials.measure_fixes").measure_fixes(
        given.paths[0],
        given.arguments,
        num_steps=given.steps,
        budget_s=seconds("--budget", given.budget),
        select=_split(given.select) if given.select else None,
        ignore=_split(given.ignore or []),
        fix=given.fix or given.diff,
        write=not given.diff,
        patience=patience_of(
            on_busy, seconds("--busy-wait", given.busy_wait), report=lambda text: _say(text, sys.stderr)
        ),
        report=lambda line: _say(line, sys.stderr),
    )
    return outcome


def _split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into whet's own and those after `--`."""
    given = list(arguments)
    if "--" not in given:
        return given, []
    place = given.index("--")
    return given[:place], given[place + 1 :]


def _diff(change: Change) -> str:
    """Return a change in the format of `patch -p1`."""
    shown: str = import_module("whet.auditor.fixing").unified_diff(change.before.path, change.before.text, change.text)
    return shown.rstrip("\n")


def _explained(name: str) -> str:
    """Return a rule's card.

    Raises:
        AuditError: There is no rule of this code or name.
    """
    known = cards()
    code = name.strip().upper()
    card = known.get(code) or next((c for c in known.values() if c.name == name.strip().lower()), None)
    if card is not None:
        return _card(card)
    family = [c for c in known.values() if code and c.code.startswith(code)]
    if not family:
        raise AuditError(f"--explain: there is no code {name!r}{near(code, known)}")
    return "\n".join(f"{c.code}  {c.name:<32}  {c.priority}" for c in family)


def _card(card: Card) -> str:
    return f"{card.text.strip()}\nPriority    {card.priority}"


def _split(given: Sequence[str]) -> list[str]:
    return [code for text in given for code in text.split(",") if code.strip()]


def _machine() -> MachineFacts:
    """Describe the machine. The import is here because it needs torch, which takes seconds."""
    facts: Callable[[], MachineFacts] = import_module("whet.machine.audit_facts").machine_facts
    return facts()


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _columns(out: Path | None) -> int:
    """Return the terminal's width, between 60 and 120 columns; 80 for a file, or without a terminal."""
    return 80 if out is not None else min(120, max(60, shutil.get_terminal_size().columns))


def _put(text: str, out: Path | None) -> None:
    """Write the report into a file, whole or not at all, or onto the terminal."""
    if out is None:
        _say(text)
    else:
        write_whole(out, f"{text}\n".encode(errors="backslashreplace"))


def _say(text: str, stream: TextIO | None = None) -> None:
    """Print what the stream's encoding can hold; the rest, such as names that are no text, with backslashes."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    if not text:
        return
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:  # as in `whet audit src | head`
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - what Python closes at its end
