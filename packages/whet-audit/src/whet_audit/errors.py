"""Define the errors that a user can cause. Each message says what was wrong and what to do.

AuditError          the settings, a code or the baseline cannot be used; exit code 2
├── OutputError     a file cannot be written
└── UsageError      the command line, or an option, is not what it takes
"""


class AuditError(Exception):
    """Report a mistake that the user can mend. The message says what was wrong and what to do."""


class OutputError(AuditError):
    """A file cannot be written."""


class UsageError(AuditError):
    """The command line, or an option, is not what it takes."""


def reason(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type where it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
