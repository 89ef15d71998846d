"""Make the trials of a search: here, in turn with other searches on this computer, or on nodes of a cluster."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from whet.core.recipe import Recipe
from whet.measure.host_turn import HostTurn
from whet.measure.load import NO_LOAD
from whet.measure.quiet import QuietWait
from whet.tuner.crew import Attempt, Crew, Worker
from whet.tuner.kind import Kind
from whet.tuner.records import TrialRecord
from whet.tuner.search import SearchTime, search_space
from whet.tuner.study import Study


@dataclass(frozen=True)
class Trials:
    """Make the trials of a search.

    Attributes:
        turn: What this computer is measured under, where other processes search in the same study.
        workers: Those of a cluster that make the trials; without any, this process does.
    """

    kind: Kind
    study: Study
    turn: HostTurn
    workers: Sequence[Worker] = ()

    def make(self, limit: SearchTime) -> list[TrialRecord]:
        """Try recipes as long as there is time for it, and return the records of those that were stopped."""
        work = self.kind.work
        if not self.kind.asked.is_shared:
            found = self._search(self.kind.attempt, limit, work.patience)
        elif not self.workers:
            found = self._search(self._in_turn, limit, _without_waiting(work.patience))
        else:
            patiences = list[QuietWait]()

            def search(attempt: Attempt) -> list[TrialRecord]:
                patiences.append(_without_waiting(work.patience))
                return self._search(attempt, limit, patiences[-1])

            crew = Crew(self.workers, work.listener.known)
            found = [record for records in crew.search(search) for record in records]
            work.patience.cause = next((one.cause for one in patiences if one.cause), work.patience.cause)
        return [record for record in found if record.status == "stopped"]

    def _search(self, attempt: Attempt, limit: SearchTime, patience: QuietWait) -> list[TrialRecord]:
        kind = self.kind
        return search_space(
            kind.space_to_search(),
            self.study,
            kind.goal,
            limit,
            attempt,
            propose=kind.next_recipe,
            samples=kind.samples,
            tidy=kind.tidy,
            patience=patience,
            report=kind.work.listener.tried,
        )

    def _in_turn(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        """Try a recipe while no other search measures here. Waiting for quiet is a part of that."""
        clock = self.kind.work.budget.clock  # which stands still while another search has its turn
        deadline = clock() + left_s
        with self.turn.taken():
            record = self.kind.work.patience.measure(
                lambda: self.kind.attempt(number, recipe, deadline - clock()), lambda found: found.busy
            )
        return record.model_copy(update={"ran_on": f"process {os.getpid()} on {socket.gethostname()}"})


def _without_waiting(patience: QuietWait) -> QuietWait:
    """Return what judges measurements that were waited with elsewhere, on the computer that made them."""
    return QuietWait(patience.on_busy, 0.0, glance=lambda seconds: (NO_LOAD, ""))
