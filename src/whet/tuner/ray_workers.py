"""Let the nodes of a Ray cluster try recipes: those of the same fingerprint as this computer."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.core.recipe import Recipe
from whet.errors import StudyError, named_reason, reason
from whet.measure.machine import Machine, describe
from whet.measure.quiet import QuietWait
from whet.parallel import ray_cluster
from whet.tuner.crew import WorkerLost
from whet.tuner.facts import KnownFacts
from whet.tuner.kind import Kind
from whet.tuner.kind_options import ray_address
from whet.tuner.node_request import NodeRequest
from whet.tuner.node_worker import THREADS, NodeWorker
from whet.tuner.records import TrialRecord
from whet.tuner.training.shared_kind import SharedTrainingKind

_LOOK_S = 120.0  # seconds for a node to start a process that imports torch
_LEAVE_S = 10.0
_GRACE_S = 60.0  # after a trial should have ended


class RayWorker:
    """Try recipes on a node of the cluster, in an actor there."""

    def __init__(self, ray: Any, node: dict[str, Any]) -> None:
        """Start the actor on a node, as ray.nodes() describes it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self.name = f"node {node['NodeID'][:8]} on {node['NodeManagerHostname']}"
        self.computer = ""
        placed = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        made = ray.remote(NodeWorker).options(num_cpus=0, max_restarts=0, scheduling_strategy=placed)
        self._actor = made.remote(os.environ.get(THREADS))
        self.looking = self._actor.look.remote()
        self.beginning: Any = None

    def begin(self, request: str) -> None:
        self.beginning = self._actor.begin.remote(request)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        steps = json.dumps([step.model_dump(mode="json") for step in recipe.steps])
        found = self.answer(self._actor.attempt.remote(number, steps, left_s), max(0.0, left_s) + _GRACE_S)
        return TrialRecord.model_validate(found["record"])

    def answer(self, asked: Any, limit_s: float) -> dict[str, Any]:
        """Return what a method of the actor answers.

        Raises:
            WorkerLost: The actor has ended, does not answer in time, or says why it cannot.
        """
        try:
            found: dict[str, Any] = json.loads(self._ray.get(asked, timeout=limit_s))
        except self._ray.exceptions.GetTimeoutError as error:
            self.end()
            raise WorkerLost(f"no answer for {limit_s:.0f} s") from error
        except self._ray.exceptions.RayTaskError as error:
            self.end()
            raise WorkerLost(named_reason(error.cause or error)) from error
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(_died(error)) from error
        if "error" in found:
            self.end()
            raise WorkerLost(str(found["error"]))
        return found

    def leave(self) -> None:
        """Let the actor remove what it has written, and end it."""
        with contextlib.suppress(WorkerLost):
            self.answer(self._actor.end.remote(), _LEAVE_S)
        self.end()

    def end(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


@dataclass(frozen=True)
class RayNodes:
    """Hold the workers on the nodes that may try recipes, and why others may not, a line each."""

    workers: list[RayWorker]
    left_out: list[str]

    def begin(self, kind: Kind, patience: QuietWait) -> None:
        """Let each node examine the target; the nodes of a computer do so one after the other.

        Raises:
            StudyError: No node is left.
        """
        request = _request(kind, patience).model_dump_json()
        for worker in self.workers:
            worker.begin(request)
        for worker in list(self.workers):
            try:
                worker.answer(worker.beginning, kind.asked.budget_s + _LOOK_S)
            except WorkerLost as lost:
                self.workers.remove(worker)
                self.left_out.append(f"{worker.name} is left out: {lost}")
        self.check()

    def check(self) -> None:
        """Raise StudyError where no node is left."""
        if not self.workers:
            raise StudyError(f"no node of the Ray cluster can try recipes: {'; '.join(self.left_out)}")


@contextlib.contextmanager
def ray_nodes(workers: str) -> Iterator[RayNodes]:
    """Join the cluster that --workers names, and yield its nodes that are like this computer.

    Raises:
        WhetError: There is no such cluster, or no such node.
    """
    from whet import __version__

    ray_cluster.check_installed("whet tune --workers ray")
    with ray_cluster.joined(ray_address(workers), f"--workers {workers}") as ray:
        here = describe()
        found = RayNodes([], [])
        started = [RayWorker(ray, node) for node in ray.nodes() if node["Alive"]]
        try:
            for worker in started:
                try:
                    looked = worker.answer(worker.looking, _LOOK_S)
                except WorkerLost as lost:
                    found.left_out.append(f"{worker.name} is left out: {lost}")
                    continue
                worker.computer = looked["computer"]
                if why := _differs(looked, here, __version__):
                    found.left_out.append(f"{worker.name} is left out: {why}")
                else:
                    found.workers.append(worker)
            found.check()
            yield found
        finally:
            for worker in found.workers:
                worker.leave()
            for worker in started:
                worker.end()


def _differs(looked: dict[str, Any], here: Machine, version: str) -> str:
    """Return why a node's trials cannot be compared with those of this computer; "" where they can."""
    if looked["whet"] != version:
        return f"it has whet {looked['whet']}, and this computer {version}"
    if looked["fingerprint"] == here.fingerprint:
        return ""
    differences = "; ".join(here.differences(looked["machine"])) or f"fingerprint {looked['fingerprint']}"
    return f"it is another machine, whose times cannot be compared ({differences})"


def _request(kind: Kind, patience: QuietWait) -> NodeRequest:
    return NodeRequest(
        target=kind.target,
        kind=kind.word,
        nproc=kind.number if isinstance(kind, SharedTrainingKind) else None,
        asked=replace(kind.asked, out="", storage="", resume=False, workers=""),
        on_busy=patience.on_busy,
        busy_wait_s=patience.left_s,
        directory=str(Path.cwd()),
        sys_path=tuple(path for path in sys.path if path),
        facts=KnownFacts.model_validate(kind.facts.kept()),
    )


def _died(error: Exception) -> str:
    """Return in a few words what Ray says of a process that is gone."""
    text = " ".join(str(error).split())
    for words in ("ModuleNotFoundError", "No module named"):
        if words in text:
            return "whet is not installed there"
    return "its process or its node has ended" if "died" in text or "unavailable" in text.lower() else reason(error)
