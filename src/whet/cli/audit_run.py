"""Audit, measure and print, once the arguments of whet audit are known to be right."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from whet.cli.audit_table import table
from whet.scripts.auditing import PROGRAM
from whet_audit.command import FAILED, explain, found, least_sure, output_format, say, show, split
from whet_audit.report import MachineFacts
from whet_audit.run import Outcome

_INCONCLUSIVE = 3
_REPORTS = ("markdown", "html")  # formats that give advice for the machine at hand


def run(given: argparse.Namespace) -> int:
    if given.explain is not None:
        return explain(given.explain)
    outcome = _measured(given) if given.measure else found(given)
    machine = _machine() if output_format(given) in _REPORTS and not given.diff else None
    outcome = replace(outcome, report=replace(outcome.report, program=PROGRAM, machine=machine))
    code = show(outcome, given)
    impact = outcome.report.impact
    if impact is not None and output_format(given) in ("top", "full", "concise"):
        say(table(impact))
    return _INCONCLUSIVE if impact is not None and impact.busy and code != FAILED else code


def _measured(given: argparse.Namespace) -> Outcome:
    """Measure the fixes of a script. The imports are here because they need torch."""
    patience_of = import_module("whet.measure.quiet").QuietWait
    on_busy = import_module("whet.measure.quiet").OnBusy.checked(given.on_busy)
    seconds = import_module("whet.ui.units").seconds
    outcome: Outcome = import_module("whet.scripts.audit_measure.measure_fixes").measure_fixes(
        given.paths[0],
        given.arguments,
        num_steps=given.steps,
        budget_s=seconds("--budget", given.budget),
        select=split(given.select) if given.select else None,
        ignore=split(given.ignore or []),
        exclude=split(given.exclude or []),
        preview=given.preview,
        min_priority=given.min_priority,
        min_confidence=least_sure(given),
        fix=given.fix or given.diff,
        write=not given.diff,
        patience=patience_of(
            on_busy,
            seconds("--busy-wait", given.busy_wait, may_be_zero=True),
            report=lambda text: say(text, sys.stderr),
        ),
        report=lambda line: say(line, sys.stderr),
    )
    if given.write_baseline is not None:
        outcome.write_baseline(given.write_baseline)
    return outcome


def _machine() -> MachineFacts:
    """Describe the machine. The import is here because it needs torch, which takes seconds."""
    facts: Callable[[], MachineFacts] = import_module("whet.measure.machine.audit_facts").machine_facts
    return facts()
