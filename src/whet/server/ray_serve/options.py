"""Hold what `--ray` takes: the cluster's address, how many replicas it runs, and how many cores each has."""

from dataclasses import dataclass

from whet.errors import OptionError
from whet.parallel.ray_cluster import host_and_port
from whet.server.replica_bounds import ONE, Bounds

LOCAL = "local"
AUTO = "auto"
ADDRESSES = f"{AUTO} (the cluster that runs on this machine), HOST:PORT, or {LOCAL} (start Ray here)"


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Hold where and how Ray runs the replicas.

    Attributes:
        address: "auto", "local" or "HOST:PORT"; see `ADDRESSES`.
        replicas: How many replicas there are, at the least and at the most.
        cpus: The cores, and so the threads, of each replica. None shares the cluster's cores among the most replicas.
        dashboard: Whether a Ray that is started here also starts its dashboard, on 127.0.0.1.

    Raises:
        OptionError: A value is out of range.
    """

    address: str
    replicas: Bounds = ONE
    cpus: int | None = None
    dashboard: bool = False

    def __post_init__(self) -> None:
        if self.address not in (AUTO, LOCAL):
            try:
                host_and_port(self.address, ADDRESSES)
            except OptionError as error:
                raise OptionError(f"--ray {self.address}: {error}") from error
        if self.cpus is not None and self.cpus < 1:
            raise OptionError(f"--ray-cpus {self.cpus}: a replica needs at least 1 core")
        if self.dashboard and self.address != LOCAL:
            raise OptionError(f"--ray-dashboard is for --ray {LOCAL}: who starts the cluster decides on its dashboard")
