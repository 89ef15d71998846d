"""Join a Ray cluster, or start Ray on this machine, and look at the machines of the cluster."""

import contextlib
import logging
import platform
from collections.abc import Iterator, Sequence

from whet.errors import OptionError, named_reason
from whet.parallel import ray_cluster
from whet.server.ray_serve.nodes import Node, survey
from whet.server.ray_serve.options import AUTO, LOCAL, RayOptions

_SURVEY_S = 90.0  # a worker process starts on each machine, and imports whet


def check_installed() -> None:
    """Raise MissingExtra if Ray Serve cannot be imported."""
    ray_cluster.check_installed("whet serve --ray", "ray.serve")


@contextlib.contextmanager
def connected(options: RayOptions) -> Iterator[None]:
    """Connect this process with the cluster as long as the block runs, or run Ray here.

    Raises:
        OptionError: There is no cluster at the address, or it cannot be joined.
        MissingExtra: Ray is not installed.
    """
    check_installed()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it tells of each replica that starts and ends
    option = f"--ray {options.address}"
    if options.address == LOCAL:
        connection = ray_cluster.started(option, dashboard=options.dashboard)
    else:
        address = ray_cluster.HERE if options.address == AUTO else options.address
        connection = ray_cluster.joined(address, option)
    with connection:
        yield


def nodes(directories: Sequence[str]) -> list[Node]:
    """Return the machines that have cores for replicas, after a look at what each has of the model directories.

    Raises:
        OptionError: One of them cannot import whet, or does not answer.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU", 0) >= 1]
    look = ray.remote(num_cpus=0, max_retries=1)(survey)
    asked = []
    for one in alive:
        there = NodeAffinitySchedulingStrategy(node_id=one["NodeID"], soft=False)
        asked.append(look.options(scheduling_strategy=there).remote(list(directories)))
    found = []
    for one, reference in zip(alive, asked, strict=True):
        address = str(one["NodeManagerAddress"])
        try:
            seen = ray.get(reference, timeout=_SURVEY_S)
        except Exception as error:
            raise OptionError(
                f"--ray: whet cannot run on {address} ({named_reason(error)}): install the same whet and Python "
                f"{platform.python_version()} on each machine of the cluster"
            ) from error
        found.append(Node(address, int(one["Resources"]["CPU"]), seen))
    if not found:
        raise OptionError("--ray: no machine of the cluster has a core for a replica (ray start --num-cpus=N)")
    return found


def free_cores() -> int:
    """Return how many cores of the cluster nobody has taken."""
    import ray

    return int(ray.available_resources().get("CPU", 0))
