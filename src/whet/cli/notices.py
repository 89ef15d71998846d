"""Show whet's notices on the terminal: plain lines, such as that the kernels are being compiled."""

import logging
import sys


class _Notices(logging.Handler):
    """Print records below WARNING to standard error as they are. Other handlers show warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            print(record.getMessage(), file=sys.stderr)


def show() -> None:
    """Show the notices of whet's kernels from now on."""
    log = logging.getLogger("whet.kernels")
    if not any(isinstance(handler, _Notices) for handler in log.handlers):
        log.addHandler(_Notices())
        log.setLevel(logging.INFO)
