"""Find what makes PyTorch code slow: whet.audit. It calls the package whet_audit, and raises whet's errors."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from whet.errors import AuditError, OptionError, OutputError
from whet_audit import errors

if TYPE_CHECKING:  # the command's help needs no rules
    from whet_audit.run import Outcome

PROGRAM = "whet audit"
_SAME = {errors.AuditError: AuditError, errors.OutputError: OutputError, errors.UsageError: OptionError}


@contextmanager
def errors_of_whet() -> Iterator[None]:
    """Turn what the auditor raises inside the block into whet's errors, with the same message."""
    try:
        yield
    except errors.AuditError as error:
        raise _SAME[type(error)](str(error)) from error


def audit(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
    exclude: Iterable[str] = (),
    preview: bool = False,
    min_priority: str | None = None,
    min_confidence: str | None = None,
    baseline: str | os.PathLike[str] | None = None,
    write_baseline: str | os.PathLike[str] | None = None,
    fix: bool = False,
    unsafe_fixes: bool = False,
    write: bool = True,
) -> "Outcome":
    """Find what makes PyTorch code slow, and repair it where that is asked for. The code is read, never run.

    What pyproject.toml says under [tool.whet.audit] holds where no argument says otherwise.

    Args:
        paths: Python files, notebooks and directories.
        select: Codes or their beginnings, such as "SYN" or "MOV101"; all, if not given.
        ignore: Codes or their beginnings to leave out.
        exclude: Patterns of paths to leave out, as in .gitignore.
        preview: Run the rules in preview too; without, only those that `select` names by their full code.
        min_priority: The least priority to show: "low" (the default), "medium" or "high".
        min_confidence: How sure a finding has to be: "perhaps", "likely" (the default) or "sure".
        baseline: A file of findings that are known; only others are shown.
        write_baseline: Where to write what is found, to be known from now on.
        fix: Repair what can be repaired at the same results.
        unsafe_fixes: With `fix`, repair also where results may differ.
        write: Write the repaired files; False leaves them as they are, and the outcome has the changes.

    Returns:
        The report, what fixes change, and the files that could not be written. Its own methods raise whet_audit's
        errors.

    Raises:
        AuditError: The settings, a code or the baseline cannot be used.
        OutputError: The new baseline cannot be written.
    """
    from whet_audit.audit import audit as find  # here, since it imports every rule

    with errors_of_whet():
        outcome = find(
            paths,
            select=select,
            ignore=ignore,
            exclude=exclude,
            preview=preview,
            min_priority=min_priority,
            min_confidence=min_confidence,
            baseline=baseline,
            write_baseline=write_baseline,
            fix=fix,
            unsafe_fixes=unsafe_fixes,
            write=write,
        )
    return replace(outcome, report=replace(outcome.report, program=PROGRAM))
