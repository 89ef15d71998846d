"""Search with the nodes of a cluster: each tries recipes on its own computer, and one that is lost loses its trial."""

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from whet.core.recipe import Recipe, Step
from whet.tuner.records import TrialRecord

Attempt = Callable[[int, Recipe, float], TrialRecord]
"""Try a recipe, given the trial's number, the recipe and the seconds that are left."""

_MOST_LOST = 2  # a recipe with which so many workers were lost has failed


class WorkerLost(Exception):
    """A worker's process or its node has ended, or does not answer. The message says what happened."""


class NoWorkerLeft(Exception):
    """No worker of a computer is left."""


class Worker(Protocol):
    """Try recipes on a computer of the cluster.

    Attributes:
        name: What people call its node.
        computer: What tells its computer from others.
    """

    name: str
    computer: str

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        """Try a recipe there.

        Raises:
            WorkerLost: It gave no answer, and never will.
        """

    def end(self) -> None:
        """End what runs there; an attempt that waits for it raises WorkerLost."""


class Crew:
    """Hold the workers of a search. Those of one computer measure one after the other, since they share its cores.

    Args:
        report: Is told, in a sentence, of each worker that is lost.
    """

    def __init__(self, workers: Sequence[Worker], report: Callable[[str], None] = lambda text: None) -> None:
        self.workers = list(workers)
        self._report = report
        self._lock = threading.Lock()
        self._is_ending = False
        self._num_lost: Counter[tuple[Step, ...]] = Counter()

    def search(self, search: Callable[[Attempt], list[TrialRecord]]) -> list[list[TrialRecord]]:
        """Call `search` once for each computer, at the same time, and return what each of them found.

        A search whose computer has no worker left ends with what the study then holds, which the others go on with.
        After an error of one of them, or KeyboardInterrupt, the trials of all are ended.
        """
        computers: defaultdict[str, list[Worker]] = defaultdict(list)
        for worker in self.workers:
            computers[worker.computer].append(worker)
        with ThreadPoolExecutor(len(computers), thread_name_prefix="whet-crew") as pool:
            futures = [pool.submit(self._on_computer, workers, search) for workers in computers.values()]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self.end()
                raise
        return [future.result() for future in futures]

    def end(self) -> None:
        """End all workers, and what they run."""
        self._is_ending = True
        for worker in list(self.workers):
            worker.end()

    def _on_computer(self, workers: list[Worker], search: Callable[[Attempt], list[TrialRecord]]) -> list[TrialRecord]:
        turns = itertools.count()

        def attempt(number: int, recipe: Recipe, left_s: float) -> TrialRecord:
            deadline = time.monotonic() + left_s
            while workers:
                worker = workers[next(turns) % len(workers)]
                try:
                    found = worker.attempt(number, recipe, deadline - time.monotonic())
                except WorkerLost as lost:
                    workers.remove(worker)
                    if self._has_failed(recipe, worker, lost):
                        reason = f"{_MOST_LOST} workers were lost while they tried it: {lost}"
                        return TrialRecord(number=number, steps=recipe.steps, status="failed", reason=reason)
                    continue
                return found.model_copy(update={"ran_on": worker.name})
            raise NoWorkerLeft

        try:
            return search(attempt)
        except NoWorkerLeft:
            return []

    def _has_failed(self, recipe: Recipe, worker: Worker, lost: WorkerLost) -> bool:
        """Note that a worker was lost, and return whether its recipe is to blame."""
        with self._lock:
            if worker in self.workers:
                self.workers.remove(worker)
            key = tuple(recipe.steps)
            self._num_lost[key] += 1
            has_failed = self._num_lost[key] >= _MOST_LOST
        if self._is_ending:
            return False
        then = "the recipe is not tried again" if has_failed else "its trial is made again elsewhere"
        self._report(f"{worker.name} is lost ({lost}); {then}")
        return has_failed
