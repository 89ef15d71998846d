"""Choose the replica of a request by its key: Ray Serve's router for whet's replicas.

Source: ray.serve.request_router.RequestRouter, whose interface is in alpha.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from whet.server.ray_serve.ranking import ranked


class KeyRouter(RequestRouter):  # type: ignore[misc]  # its class comes from a library without types
    """Send requests with equal keys to the same replica while its load allows, and others to the idlest replica."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas one by one, the best first. Ray takes the first one that has room."""
        key = ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # wait between two rounds through full replicas
            key = pending_request.metadata.session_id
        loads = self.replica_queue_len_cache
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        names = ranked(key, list(by_name), lambda name: loads.get(by_name[name].replica_id) or 0)
        return [[by_name[name]] for name in names]
