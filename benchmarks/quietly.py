"""For benchmark scripts that time things by themselves: no figure of a busy machine is written."""

import contextlib
import sys
from collections.abc import Iterator

from whet.measure.load import Observed
from whet.measure.quiet import QuietWait

_DISTURBED = 3  # exit code, as of whet's commands


@contextlib.contextmanager
def quiet_machine() -> Iterator[None]:
    """Wait for a quiet machine, then run the block; end the script where other processes disturbed it."""
    patience = QuietWait(report=lambda text: print(text, file=sys.stderr) if text else None)
    patience.begin()
    if patience.has_run_out:
        _leave(patience.sentence)
    with Observed() as seen:
        yield
    if seen.load.cause:
        _leave(f"{seen.load.cause} while it was measured")


def _leave(why: str) -> None:
    print(f"Nothing is written: {why}.", file=sys.stderr)
    sys.exit(_DISTURBED)
