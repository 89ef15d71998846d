"""Audit, measure and print, once the arguments of whet audit are known to be right."""

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
from whet.auditor.formats import render
from whet.auditor.report import MachineFacts, count
from whet.auditor.run import Change, Outcome, cards
from whet.auditor.settings import near
from whet.cli.audit_table import table
from whet.errors import AuditError
from whet.files import write_whole

_CLEAN, _FINDINGS, _FAILED, _INCONCLUSIVE = 0, 1, 2, 3
_REPORTS = ("markdown", "html")  # formats that give advice for the machine at hand


def run(given: argparse.Namespace, output_format: str) -> int:
    """Audit what the arguments name, print or write the report in this format, and return the exit code."""
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


def _diff(change: Change) -> str:
    """Return a change in the format of `patch -p1`."""
    shown: str = import_module("whet.auditor.fixing").unified_diff(change.before.path, change.before.text, change.text)
    return shown.rstrip("\n")


def explain(name: str) -> int:
    """Print a rule's card, or the rules of a family.

    Raises:
        AuditError: There is no rule of this code or name.
    """
    known = cards()
    code = name.strip().upper()
    card = known.get(code) or next((c for c in known.values() if c.name == name.strip().lower()), None)
    if card is not None:
        _say(_card(card))
        return _CLEAN
    family = [c for c in known.values() if code and c.code.startswith(code)]
    if not family:
        raise AuditError(f"--explain: there is no code {name!r}{near(code, known)}")
    _say("\n".join(f"{c.code}  {c.name:<32}  {c.priority}" for c in family))
    return _CLEAN


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
