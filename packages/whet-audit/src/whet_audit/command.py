"""Audit and print, once the arguments of whet-audit are known to be right. whet audit prints by the same functions."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TextIO

from whet_audit.audit import audit
from whet_audit.card import Card
from whet_audit.errors import AuditError
from whet_audit.files import write_whole
from whet_audit.finding import Priority, reaches
from whet_audit.formats import render
from whet_audit.report import count
from whet_audit.run import Change, Outcome, cards
from whet_audit.settings import near

CLEAN, FINDINGS, FAILED = 0, 1, 2


def found(given: argparse.Namespace) -> Outcome:
    """Audit what the arguments name, and write what they say."""
    return audit(
        given.paths,
        select=split(given.select) if given.select else None,
        ignore=split(given.ignore or []),
        exclude=split(given.exclude or []),
        preview=given.preview,
        min_priority=given.min_priority,
        min_confidence=least_sure(given),
        baseline=given.baseline,
        write_baseline=given.write_baseline,
        fix=given.fix or given.diff,
        unsafe_fixes=given.unsafe_fixes,
        write=not given.diff,
    )


def show(outcome: Outcome, given: argparse.Namespace) -> int:
    """Print an outcome, or write it where the arguments say, and return the exit code."""
    report = outcome.report
    for line in [*report.notes, *(problem.text for problem in report.problems), *outcome.failures]:
        say(line, sys.stderr)
    if given.diff:
        _put("\n".join(map(_diff, outcome.changes)), given.out)
        would = f"{count(report.num_fixed, 'finding')} would be fixed in {count(len(outcome.changes), 'file')}"
        say(would, sys.stderr)
    else:
        colour = given.out is None and _has_colour(sys.stdout)
        _put(render(report, output_format(given), colour=colour, columns=_columns(given.out)), given.out)
    if given.out is not None:
        say(f"{report.summary()}\nwritten to {given.out}", sys.stderr)
    if given.write_baseline is not None:
        say(f"{count(len(outcome.findings), 'finding')} written to {given.write_baseline}", sys.stderr)
    if report.problems or outcome.failures:
        return FAILED
    fail_on = outcome.fail_on if given.fail_on is None else Priority(given.fail_on)
    is_left = any(reaches(one.priority, fail_on) for one in report.findings) or (given.diff and outcome.changes)
    return FINDINGS if is_left and given.write_baseline is None else CLEAN


def explain(name: str) -> int:
    """Print a rule's card, or the rules of a family.

    Raises:
        AuditError: There is no rule of this code or name.
    """
    known = cards()
    code = name.strip().upper()
    card = known.get(code) or next((c for c in known.values() if c.name == name.strip().lower()), None)
    if card is not None:
        say(_card(card))
        return CLEAN
    family = [c for c in known.values() if code and c.code.startswith(code)]
    if not family:
        raise AuditError(f"--explain: there is no code {name!r}{near(code, known)}")
    say("\n".join(f"{c.code}  {c.name:<38}  {c.priority}{', preview' if c.is_preview else ''}" for c in family))
    return CLEAN


def least_sure(given: argparse.Namespace) -> str | None:
    """Return how sure findings have to be; None where the arguments do not say it."""
    least: str | None = given.min_confidence or ("perhaps" if given.all else None)
    return least


def output_format(given: argparse.Namespace) -> str:
    """Return the format that the arguments choose."""
    return "json" if given.json else given.output_format or ("full" if given.all else "top")


def split(given: Sequence[str]) -> list[str]:
    """Return the codes of an option that may be given several times, each time with several codes."""
    return [code for text in given for code in text.split(",") if code.strip()]


def say(text: str, stream: TextIO | None = None) -> None:
    """Print what the stream's encoding can hold; the rest, such as names that are no text, with backslashes."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    if not text:
        return
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:  # as in `whet-audit src | head`
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - what Python closes at its end


def _card(card: Card) -> str:
    preview = f"\nPreview     Off without --preview or --select {card.code}." if card.is_preview else ""
    return f"{card.text.strip()}\nPriority    {card.priority}{preview}"


def _diff(change: Change) -> str:
    """Return a change in the format of `patch -p1`. libcst, which it imports, takes as long as all else to start."""
    shown: str = import_module("whet_audit.fixing").unified_diff(change.before.path, change.before.text, change.text)
    return shown.rstrip("\n")


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _columns(out: Path | None) -> int:
    """Return the terminal's width, between 60 and 120 columns; 80 for a file, or without a terminal."""
    return 80 if out is not None else min(120, max(60, shutil.get_terminal_size().columns))


def _put(text: str, out: Path | None) -> None:
    """Write the report into a file, whole or not at all, or onto the terminal."""
    if out is None:
        say(text)
    else:
        write_whole(out, f"{text}\n".encode(errors="backslashreplace"))
