"""What processes do in the tests of signs of life: they hold the interpreter's lock, or end without a word."""

import contextlib
import ctypes
import io
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from whet.errors import RanksError
from whet.parallel.joining import joined
from whet.parallel.ranks import Ranks


def held_up(who: int, seconds: int, gone_s: float, timeout_s: float) -> dict[str, Any]:
    """Have a process hold the interpreter's lock, so that its own threads stand still, while the others wait for it."""
    return _answered(who, lambda: ctypes.PyDLL(None).sleep(seconds), gone_s, timeout_s)  # PyDLL keeps the lock


def killed(who: int, gone_s: float) -> dict[str, Any]:
    """Have a process end without a word while the others wait for it."""
    return _answered(who, lambda: os.kill(os.getpid(), signal.SIGKILL), gone_s, 60.0)


def _answered(who: int, does: Callable[[], Any], gone_s: float, timeout_s: float) -> dict[str, Any]:
    """Return what a process gathered while one does something, or the error that it met, and what it said meanwhile."""
    found: Any = None
    said = io.StringIO()
    began = time.monotonic()
    with contextlib.suppress(RanksError), joined() as ranks:
        _begin(ranks, gone_s)
        began = time.monotonic()
        try:
            if ranks.rank == who:
                does()
            with contextlib.redirect_stderr(said):
                found = ranks.gather("the answers", ranks.rank, timeout_s)
        except RanksError as error:
            found = {"error": str(error), "is_told": error.is_told}
    return {"found": found, "said": said.getvalue(), "seconds": time.monotonic() - began}


def _begin(ranks: Ranks, gone_s: float) -> None:
    ranks.gone_s = gone_s
    ranks.at("in step 7")
    ranks.beat()
    ranks.gather("the beginning", None)
