"""Parse and check the command line of whet-audit. What it imports is light; the rules come when they are needed."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from whet_audit.errors import AuditError, UsageError
from whet_audit.files import check_file
from whet_audit.formats import FORMATS
from whet_audit.usage import Parser

PROGRAM = "whet-audit"
_COMMAND = "whet_audit.command"  # imported once the arguments are right
LEVELS = ("low", "medium", "high")
SURE = ("perhaps", "likely", "sure")
_WRONG_USE = 2
_INTERRUPTED = 130

ABOUT = """Find what makes PyTorch code slow, say what it may cost, and fix it.

Tests and examples are left out below the directories that you name; name them
to have them audited. The exit code is 0 if nothing is found, 1 if findings are
left, and 2 on wrong use or if a file cannot be read."""
EXAMPLES = ("whet-audit train.py src", "whet-audit train.py --fix --diff")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, audit, print; return the exit code."""
    try:
        given = parser(PROGRAM, ABOUT, EXAMPLES).parse_intermixed_args(arguments)
        check(given, PROGRAM)
        command = import_module(_COMMAND)
        if given.explain is not None:
            return int(command.explain(given.explain))
        return int(command.show(command.found(given), given))
    except AuditError as error:
        print(f"error: {error}", file=sys.stderr)
        return _WRONG_USE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def parser(program: str, about: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the options of an audit.

    Args:
        program: The command, for its messages.
        about: What its help says first.
        examples: The command lines with which its help ends.
    """
    made = Parser(
        prog=program,
        description=about,
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("paths", metavar="PATH", nargs="*", type=Path, help="Python files, notebooks and directories")
    add("--fix", action="store_true", help="apply the fixes that keep all results the same")
    add("--unsafe-fixes", action="store_true", help="apply fixes that may change results as well")
    add("--diff", action="store_true", help="show what --fix would change; write nothing")
    add("--select", metavar="CODES", action="append", help="codes or their beginnings, as SYN,MOV101")
    add("--ignore", metavar="CODES", action="append", help="codes or their beginnings to leave out")
    add("--exclude", metavar="PATTERNS", action="append", help="paths to leave out, as in .gitignore: old,docs/*.py")
    add("--preview", action="store_true", help="also the rules that are right less than four times in five")
    add("--min-priority", metavar="LEVEL", choices=LEVELS, help=f"the least priority: {', '.join(LEVELS)} (low)")
    add("--min-confidence", metavar="HOW", choices=SURE, help=f"how sure at least: {', '.join(SURE)} (likely)")
    add("--fail-on", metavar="LEVEL", choices=LEVELS, help="the least priority for which the exit code is 1 (low)")
    add("--baseline", metavar="FILE", type=Path, help="show only findings that this file does not contain")
    add("--write-baseline", metavar="FILE", type=Path, help="write the findings, for later runs with --baseline")
    add("--output-format", metavar="FORMAT", choices=FORMATS, help=f"the format: {', '.join(FORMATS)} (top)")
    add("--all", action="store_true", help="show all findings with their source, also what is only perhaps so")
    add("--out", metavar="FILE", type=Path, help="write the report to this file instead of the terminal")
    add("--explain", metavar="CODE", help="say what a rule finds, and why")
    add("--json", action="store_true", help="short for --output-format json")
    return made


def check(given: argparse.Namespace, program: str) -> None:
    """Check what can be checked before any file is read.

    Raises:
        AuditError: The arguments do not fit together, or name nothing.
    """
    if given.explain is not None:
        return
    if not given.paths:
        raise UsageError(f"name files or directories to audit, as {program} train.py src")
    if given.unsafe_fixes and not (given.fix or given.diff):
        raise UsageError("--unsafe-fixes widens --fix and --diff: give one of them as well")
    if not any(map(os.path.lexists, given.paths)):
        raise AuditError(f"{given.paths[0]}: there is no such file or directory")
    for path in (given.out, given.write_baseline):
        check_file(path)
