"""Ask replicas by Ray Serve's handle of their deployment."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from whet.server.http.errors import ApiError, failed, unavailable
from whet.server.ray_serve.front import Call, ReplicaLost

_METRICS_S = 5.0  # how long a replica may take to tell its metrics

_log = logging.getLogger("whet.server")


class RayReplicas:
    """Ask the replicas of a deployment; see front.Replicas. Ray's router chooses the replica by the call's key."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def ask(self, call: Call) -> AsyncGenerator[list[Message], None]:
        handle = self._handle.options(method_name="answer", stream=True, session_id=call.key)
        response: Any = handle.remote(call.head, call.body)
        has_ended = False
        try:
            async for messages in response:
                yield messages
            has_ended = True
        except RayTaskError as error:  # raised by the replica's own code
            has_ended = True
            _log.error("%s %s failed", call.head["method"], call.head["path"], exc_info=error)
            raise failed("the replica failed on this request; the server's log says where") from error
        except RayActorError as error:
            has_ended = True
            raise ReplicaLost(str(error)) from error
        except BackPressureError as error:
            has_ended = True
            message = "more requests wait for replicas than may: try again later"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"}) from error
        except DeploymentUnavailableError as error:
            has_ended = True
            raise unavailable("the replicas cannot be started; the server's log says why") from error
        finally:
            if not has_ended:
                response.cancel()

    async def metrics(self) -> dict[str, str]:
        try:
            asked: Any = self._handle.broadcast("metrics")
            # results_async() returns nothing at all where one of the replicas does not answer in time.
            replicas = await asyncio.wait_for(asked._fetch_replica_results_async(), _METRICS_S)
        except (TimeoutError, RayError, RayServeException):
            return {}
        asking = [asyncio.ensure_future(one.get_async()) for one in replicas]
        if asking:
            await asyncio.wait(asking, timeout=_METRICS_S)
        for one in asking:
            one.cancel()
        return dict(one.result() for one in asking if one.done() and not one.cancelled() and one.exception() is None)
