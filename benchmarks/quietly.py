"""For benchmark scripts that time things by themselves: no figure of a busy machine is written."""

import contextlib
import sys
from collections.abc import Iterator

from followed import Followed

from whet.measure.load import Observed
from whet.measure.quiet import QuietWait

_DISTURBED = 3  # exit code, as of whet's commands


@contextlib.contextmanager
def quiet_machine(*, follows: bool = False) -> Iterator[None]:
    """Wait for a quiet machine, then run the block; end the script where other processes disturbed it.

    Args:
        follows: Whether processes of the block end without anybody who waits for them (see followed.py).
    """
    patience = QuietWait(report=lambda text: print(text, file=sys.stderr) if text else None)
    patience.begin()
    if patience.has_run_out:
        _leave(patience.sentence)
    with Followed() if follows else contextlib.nullcontext() as read, Observed(read) as seen:
        yield
    if seen.load.cause:
        _leave(f"{seen.load.cause} while it was measured")


def _leave(why: str) -> None:
    print(f"Nothing is written: {why}.", file=sys.stderr)
    sys.exit(_DISTURBED)
