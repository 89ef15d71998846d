"""Serve models on Ray Serve until the process is asked to end: the server in this process, replicas elsewhere."""

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from whet.errors import OptionError
from whet.server.artefacts.directories import Source
from whet.server.asked import Asked
from whet.server.http.hardened import WebServer
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.settings import Settings
from whet.server.opening import Names, checked_sources, given_of
from whet.server.ray_serve import cluster
from whet.server.ray_serve.front import Replicas, front_app
from whet.server.ray_serve.options import RayOptions
from whet.ui.network import bind


class RayServer(WebServer):
    """Serve on a bound socket, with replicas that do the work. SIGHUP replaces the replicas while they answer.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    hears_hangup = True

    def __init__(
        self, replicas: Replicas, settings: Settings, bound: socket.socket, renew: Callable[[], None] = lambda: None
    ) -> None:
        self._renew = renew
        self._renewing: threading.Thread | None = None
        lifecycle = Lifecycle()
        super().__init__(front_app(replicas, settings, lifecycle), settings, lifecycle, bound)

    def _hang_up(self) -> None:
        if self._renewing is None or not self._renewing.is_alive():
            self._renewing = threading.Thread(target=self._renew, name="whet-renew", daemon=True)
            self._renewing.start()


def serve_on_ray(
    asked: Asked,
    *,
    ray: RayOptions,
    host: str,
    port: int,
    note: Callable[[str], None],
    ready: Callable[[RayServer, Mapping[Names, Source]], None],
) -> None:
    """Serve models by replicas on a Ray cluster until SIGTERM or Ctrl-C. Call it in the main thread.

    The replicas are ended at the end, after their last answers. An application of the same name that runs already is
    updated: its replicas are replaced one after the other.

    Args:
        ray: Where the cluster is, and how many replicas it runs.
        note: Called with a sentence on each thing that was decided.
        ready: Called with the server and what the directories of the models hold, once requests are taken. It must not
            block.

    Raises:
        MissingExtra: Ray is not installed.
        TargetError: A model cannot be loaded.
        OptionError: An option does not fit the cluster or the models, or the port is not available.
    """
    sources = checked_sources(asked.model, asked.models, asked.names)
    settings = replace(asked.settings, served_names=next(iter(sources)))
    cluster.check_installed()
    from whet.server.ray_serve.calls import RayReplicas
    from whet.server.ray_serve.plan import Plan

    if settings.state_dir:
        raise OptionError("--state-dir: with --ray, states would lie on the machine of one replica; leave it out")
    if asked.options.tensor_parallel_size > 1:
        raise OptionError("--tensor-parallel-size: with --ray, a replica is one process; leave one of them out")
    plan = Plan(asked.model, asked.models, sources, given_of(asked, settings), ray, settings, note)
    with bind(host, port) as bound, cluster.connected(ray):
        deployed = plan.deploy()
        try:
            server = RayServer(RayReplicas(deployed.handle), settings, bound, partial(plan.renew, deployed))
            server.run(lambda: ready(server, sources))
        finally:
            deployed.end()
