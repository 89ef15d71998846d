"""Try recipes on a node of a cluster, as the process there does it that the search has started.

Everything that goes in and out is JSON. This module imports no torch: the number of threads must be set before.
"""

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

THREADS = "OMP_NUM_THREADS"
_PREFIX = "whet-worker-"


class NodeWorker:
    """Try recipes here; each method returns JSON. An entry "error" holds what the user can mend, in a line."""

    def __init__(self, threads: str | None) -> None:
        """Make a worker whose processes have as many threads as those of the search; None where nobody has set it."""
        self._threads = threads
        self._open = contextlib.ExitStack()

    def look(self) -> str:
        """Return what this computer is, and which versions it has."""
        self._set_threads()
        from whet import __version__
        from whet.measure.host import computer_id
        from whet.measure.machine import describe

        machine = describe()
        return json.dumps(
            {
                "whet": __version__,
                "computer": computer_id(),
                "fingerprint": machine.fingerprint,
                "machine": machine.facts(),
                "pid": os.getpid(),
            }
        )

    def begin(self, text: str) -> str:
        """Examine the target here, and check that it is the one that the search has examined.

        Args:
            text: What NodeRequest says, as JSON.
        """
        self._set_threads()
        from whet.errors import WhetError

        try:
            self._begin(text)
        except WhetError as error:
            self._open.close()
            return json.dumps({"error": str(error)})
        return "{}"

    def _begin(self, text: str) -> None:
        from whet.errors import TargetError
        from whet.files import private_directory
        from whet.measure.host_turn import HostTurn
        from whet.measure.quiet import QuietWait
        from whet.tuner.budget import Budget
        from whet.tuner.kind import OtherKind, Work
        from whet.tuner.kinds import kind_of
        from whet.tuner.listener import Listener
        from whet.tuner.node_request import NodeRequest
        from whet.tuner.opened_study import check_same
        from whet.tuner.prepared_target import prepared
        from whet.tuner.time_account import TimeAccount
        from whet.workloads.target_name import check_name

        request = NodeRequest.model_validate_json(text)
        if not Path(request.directory).is_dir():
            raise TargetError(f"there is no directory {request.directory}, in which whet tune was started")
        os.chdir(request.directory)
        sys.path[:] = [*sys.path, *(path for path in request.sys_path if path not in sys.path)]
        check_name(request.target)
        self._turn = HostTurn()
        patience = QuietWait(request.on_busy, request.busy_wait_s)
        budget = Budget(request.asked.budget_s)
        kind = kind_of(request.kind, request.asked, prepared(request.target), nproc=request.nproc)
        kind.check()
        self._directory = self._open.enter_context(private_directory(Path(tempfile.gettempdir()), _PREFIX))
        self._open.callback(setattr, tempfile, "tempdir", tempfile.gettempdir())
        tempfile.tempdir = str(self._directory)  # so that all that this process makes is found if it is killed
        self._open.enter_context(kind.at_work(Work(budget, TimeAccount(budget.clock), patience, Listener())))
        with self._turn.taken():
            found = kind.examine()
            if isinstance(found, OtherKind):
                raise TargetError(f"{request.target} is no {request.kind} here, but a {found.word}")
            check_same(request.facts, found)
            kind.measure_original()
        kind.go_on_with(request.facts)
        kind.begin_search(self._directory, [])
        self._kind, self._patience = kind, patience

    def attempt(self, number: int, steps: str, left_s: float) -> str:
        """Try a recipe, and return the trial's record. What it has saved is removed: the finals make it again."""
        self._set_threads()
        import shutil
        import time

        from pydantic import TypeAdapter

        from whet.core.recipe import Recipe, Step
        from whet.errors import WhetError
        from whet.tuner.preparation import WORK

        recipe = Recipe(steps=TypeAdapter(tuple[Step, ...]).validate_json(steps))
        deadline = time.monotonic() + left_s
        try:
            with self._turn.taken():
                record = self._patience.measure(
                    lambda: self._kind.attempt(number, recipe, deadline - time.monotonic()), lambda found: found.busy
                )
        except WhetError as error:
            return json.dumps({"error": str(error)})
        shutil.rmtree(self._directory / WORK / f"trial-{number}", ignore_errors=True)
        return json.dumps({"record": record.model_dump(mode="json")})

    def end(self) -> str:
        """Remove what lies here, and end the processes that were kept."""
        self._open.close()
        return "{}"

    def _set_threads(self) -> None:
        """Let the processes of this worker have the threads that the search has. Ray gives each one, unless told."""
        if self._threads is None:
            os.environ.pop(THREADS, None)
        else:
            os.environ[THREADS] = self._threads
