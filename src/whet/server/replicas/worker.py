"""Run one replica: a process that serves on a Unix socket what it reads from standard input.

`python -m whet.server.replicas.worker` reads one JSON object (see `Order`). It writes one line of JSON on standard
output: what it serves, once it takes requests, or what is wrong with it. From then on it writes an empty line every few
seconds, and ends if its event loop or an engine hangs. Everything else goes to standard error.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NoReturn

from whet.errors import EngineClosed, WhetError, reason
from whet.measure.child import ending_with_parent
from whet.measure.cores import bind_thread
from whet.measure.fast_import import large_imports
from whet.server.replicas.beats import BEAT_S, SILENT_S, STEP_S

if TYPE_CHECKING:
    from whet.server.http.models import Models

_USER_ERROR, _HANGS = 2, 4  # exit codes


@dataclass(frozen=True)
class Order:
    """Hold what a replica is told.

    Attributes:
        path: The Unix socket to listen on.
        cores: The cores to run on.
        parent: The process with which it ends.
        asked: What to serve, as `Asked.as_json` says it.
    """

    path: str
    cores: list[int]
    parent: int
    asked: dict[str, Any]


def main() -> int:
    ending_with_parent(signal.SIGKILL)()
    said = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    order = Order(**json.load(sys.stdin))
    if os.getppid() != order.parent:  # it ended before this process could ask to be ended with it
        return 1
    bind_thread(order.cores)  # before any library starts threads: it starts as many as there are cores
    try:
        _serve(order, said)
    except WhetError as error:
        _say(said, {"error": type(error).__name__, "message": str(error)})
        return _USER_ERROR
    return 0


def _serve(order: Order, said: IO[str]) -> None:
    with large_imports():
        from whet.server.asked import Asked
        from whet.server.one_process import serve_here
        from whet.ui.network import bind_file
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[warnings])
    serve_here(
        Asked.from_json(order.asked),
        lambda: bind_file(order.path),
        note=partial(print, file=sys.stderr),
        ready=lambda _, served, __: _begin(said, served),
    )


def _begin(said: IO[str], served: "Models") -> None:
    """Say what is served, and that this process answers from now on. Call it on the event loop."""
    _say(said, {"models": _models(served)})
    beat = partial(_beat, said, served, asyncio.get_running_loop())
    threading.Thread(target=beat, name="whet-beat", daemon=True).start()


def _beat(said: IO[str], served: "Models", loop: asyncio.AbstractEventLoop) -> None:
    """Write an empty line every few seconds. If an engine or the event loop hangs, end the process."""
    answered_s = dict.fromkeys(served.engines, time.monotonic())
    try:
        while True:
            for names, engine in served.engines.items():
                with suppress(TimeoutError):  # a step goes on
                    engine.ping(BEAT_S)
                    answered_s[names] = time.monotonic()
                if time.monotonic() - answered_s[names] > STEP_S:
                    _hangs(f"the engine of {names[0]}", STEP_S)
            loop.call_soon_threadsafe((has_turned := threading.Event()).set)
            if not has_turned.wait(SILENT_S):
                _hangs("its event loop", SILENT_S)
            said.write("\n")
            said.flush()
            time.sleep(BEAT_S)
    except (EngineClosed, OSError, RuntimeError, ValueError):  # the process ends
        return


def _hangs(what: str, seconds: float) -> NoReturn:
    """End the process at once: what hangs would hold up an orderly end."""
    sys.stderr.write(f"{what} has not answered for {seconds:g} s\n")
    sys.stderr.flush()
    os._exit(_HANGS)


def _models(served: "Models") -> list[dict[str, Any]]:
    """Return the name of each model, and where requests go to."""
    engines = [{"name": names[0], "path": "/v1"} for names in served.engines]
    artefacts = {artefact.name: artefact for artefact in served.artefacts.values()}
    return engines + [{"name": name, "path": f"/v2/models/{name}/infer"} for name in artefacts]


def _say(said: IO[str], content: dict[str, Any]) -> None:
    said.write(json.dumps(content) + "\n")
    said.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as failure:
        sys.stderr.write(f"{type(failure).__name__}: {reason(failure)}\n")
        raise
