"""Start replicas on Ray Serve, replace them while they answer, and end them."""

import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from whet.errors import TargetError
from whet.server.ray_serve.cluster import free_cores
from whet.server.ray_serve.replica import HEALTH_S, Asked, Replica
from whet.server.replica_bounds import Bounds

DEPLOYMENT = "whet"
_START_S = 1800.0  # time to compile kernels, and to read and quantise weights, on each machine in turn
_PLACE_S = 60.0  # a replica for which there is no room after that has none
_POLL_S = 0.2
_CHECK_S = 5.0  # between two health checks
_TRIES = 3  # to start a replica
_ASK_S = 10.0
_NO_ROOM = "to be scheduled"  # Ray's words in the status of a deployment whose replicas nobody has room for


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Hold what the replicas need.

    Attributes:
        ongoing: The most requests that one replica works on at once; further ones wait before the replicas.
        waiting: The most requests that wait; further ones are refused.
        grace_s: How long a replica that ends may work on the requests that it has.
    """

    replicas: Bounds
    cpus: int
    memory_bytes: int
    ongoing: int
    waiting: int
    grace_s: float


class Deployed:
    """Hold the replicas of one application, from `start` to `end`.

    Raises:
        TargetError: They cannot be started.
    """

    def __init__(self, name: str, asked: Asked, scale: Scale) -> None:
        self.name, self._asked, self._scale = name, asked, scale
        serve.start(proxy_location="Disabled")  # requests come through whet's own server; Ray opens no port for them
        self.is_update = name in serve.status().applications
        try:
            self._run(asked, self._spare())
        except BaseException:
            if not self.is_update:
                self.end()
            raise

    @property
    def handle(self) -> DeploymentHandle:
        return serve.get_deployment_handle(DEPLOYMENT, app_name=self.name)

    def renew(self, generation: str) -> None:
        """Replace all replicas, a few at a time, while the others answer. If the new ones fail, the old ones come back.

        Raises:
            TargetError: The new ones fail.
        """
        before, self._asked = self._asked, replace(self._asked, generation=generation)
        try:
            self._run(self._asked, self._spare())
        except TargetError:
            self._asked = before
            self._run(before, spare=0)
            raise

    def end(self) -> None:
        """Let the replicas finish their requests and end them, unless another process has deployed others since."""
        with contextlib.suppress(RayError, RayServeException):  # another process has ended Ray Serve, or the cluster
            if not self._is_another():
                serve.delete(self.name)
            if not serve.status().applications:
                serve.shutdown()

    def _is_another(self) -> bool:
        """Return whether another process has deployed the replicas that run now."""
        try:
            found = self.handle.broadcast("generation").results(timeout_s=_ASK_S, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException):  # none answers
            return False
        words = {one for one in found if isinstance(one, str)}
        return bool(words) and self._asked.generation not in words

    def _spare(self) -> int:
        """Return how many more replicas than the most the cluster has free cores for."""
        found = serve.status().applications.get(self.name)
        deployed = None if found is None else found.deployments.get(DEPLOYMENT)
        running = 0 if deployed is None else deployed.replica_states.get("RUNNING", 0)
        return free_cores() // self._scale.cpus - max(0, self._scale.replicas.most - running)

    def _run(self, asked: Asked, spare: int) -> None:
        target = serve.RunTarget(target=_application(asked, self._scale, spare), name=self.name, route_prefix=None)
        serve.run_many([target], wait_for_applications_running=False)
        self._wait()

    def _wait(self) -> None:
        """Wait until all replicas run.

        Raises:
            TargetError: They do not.
        """
        until_s = time.monotonic() + _START_S
        unplaced_s: float | None = None
        while time.monotonic() < until_s:
            found = serve.status().applications[self.name]
            if found.status == "RUNNING":
                return
            said = [found.message, *(one.message for one in found.deployments.values())]
            if found.status == "DEPLOY_FAILED":
                raise TargetError(f"the replicas cannot be started: {_last_line(said)}")
            if any(_NO_ROOM in one for one in said):
                unplaced_s = unplaced_s or time.monotonic()
                if time.monotonic() - unplaced_s > _PLACE_S:
                    raise TargetError("the cluster has no room for the replicas: others use its cores or its memory")
            else:
                unplaced_s = None
            time.sleep(_POLL_S)
        raise TargetError(f"the replicas did not start within {_START_S:g} s: {_last_line(said)}")


def _application(asked: Asked, scale: Scale, spare: int) -> serve.Application:
    """Return the application for Ray Serve.

    Args:
        spare: How many more replicas the cluster has room for; an update starts so many before it ends others.
    """
    most = scale.replicas.most
    if scale.replicas.least == most:
        number: dict[str, Any] = {"num_replicas": most}
    else:
        scaling = AutoscalingConfig(
            min_replicas=scale.replicas.least,
            max_replicas=most,
            target_ongoing_requests=max(1, scale.ongoing // 2),
        )
        number = {"autoscaling_config": scaling}
    deployment = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": scale.cpus, "memory": scale.memory_bytes},
        max_ongoing_requests=scale.ongoing,
        max_queued_requests=scale.waiting,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=scale.grace_s,
        health_check_period_s=_CHECK_S,
        health_check_timeout_s=HEALTH_S + _CHECK_S,
        request_router_config=RequestRouterConfig(request_router_class=f"{__package__}.router.KeyRouter"),
        max_constructor_retry_count=_TRIES,
        max_surge_percent=max(0, min(100, 100 * spare // most)),
        **number,
    )
    return deployment.bind(asked)


def _last_line(said: list[str]) -> str:
    """Return the last line of Ray's messages, where the error of a traceback stands."""
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "Ray says nothing about it; see /tmp/ray/session_latest/logs/serve"
