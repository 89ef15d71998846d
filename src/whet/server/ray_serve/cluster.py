"""Join a Ray cluster, or start Ray on this machine. What is wrong is said in seconds, and in one line."""

import logging
import os
import platform
import socket
from collections.abc import Sequence
from typing import Any

import psutil

from whet.errors import MissingExtra, OptionError, named_reason
from whet.server.ray_serve.nodes import Node, survey
from whet.server.ray_serve.options import LOCAL, RayOptions, host_and_port
from whet.ui.network import LOOPBACK

_ANSWER_S = 5.0  # how long the cluster's head may take to accept a connection and to say its first word
_SURVEY_S = 90.0  # a worker process starts on each machine, and imports whet
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # with an empty SETTINGS frame; RFC 9113, 3.4
_SETTINGS = 4  # the type of the first frame that an HTTP/2 server sends


def check_installed() -> None:
    """Raise MissingExtra if Ray Serve cannot be imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it as it is imported; nothing is sent to anybody
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise MissingExtra("ray[serve]", "ray", "whet serve --ray") from error


def join(options: RayOptions) -> None:
    """Connect this process with the cluster, or start Ray here.

    Raises:
        OptionError: There is no cluster at the address, or it cannot be joined.
        MissingExtra: Ray is not installed.
    """
    check_installed()
    import ray

    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "whet"}
    if options.address == LOCAL:
        how |= {"address": LOCAL, "include_dashboard": options.dashboard, "dashboard_host": LOOPBACK}
        how |= {"_node_ip_address": LOOPBACK}
    else:
        host, port = host_and_port(options.address) or _on_this_machine()
        _check_answers(options.address, host, port)
        _check_node_here(options.address)
        how |= {"address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it tells of each replica that starts and ends
    try:
        ray.init(**how)
    except Exception as error:  # Ray raises errors of many kinds
        said = " ".join(str(error).split()) or type(error).__name__
        raise OptionError(
            f"--ray {options.address}: this process cannot join the cluster ({said}); it must run on a machine of the "
            "cluster (ray start --address=HEAD:6379), with the same versions of Ray and Python"
        ) from error


def leave() -> None:
    """Disconnect from the cluster. A Ray that was started here ends."""
    import ray

    ray.shutdown()


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


def _on_this_machine() -> tuple[str, int]:
    """Return the address of the cluster that this machine belongs to."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None or (read := host_and_port(found)) is None:
        raise OptionError(
            f"--ray auto: no Ray runs on this machine; start it with `ray start --head`, or write --ray {LOCAL}"
        )
    return read


def _check_node_here(given: str) -> None:
    """Check that a node of Ray runs on this machine, without which a process cannot join a cluster.

    Raises:
        OptionError: None does.
    """
    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        raise OptionError(
            f"--ray {given}: this machine belongs to no Ray cluster; make it a part (ray start --address={given} "
            "--num-cpus=0 if no replica is to run here), or start whet serve on a machine of the cluster"
        )


def _check_answers(given: str, host: str, port: int) -> None:
    """Check that a gRPC server listens there, as the head of a Ray cluster does. Ray itself would wait for minutes.

    Raises:
        OptionError: None does.
    """
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return  # the first word would be encrypted
            connection.sendall(_PREFACE)
            head = b""
            while len(head) < 9 and (more := connection.recv(64)):
                head += more
    except OSError as error:
        raise OptionError(
            f"--ray {given}: {host}:{port} does not answer ({error.strerror or error}); give the address of the head's "
            "GCS server, which `ray start --head` prints (port 6379 by default)"
        ) from error
    if len(head) < 9 or head[3] != _SETTINGS:
        raise OptionError(f"--ray {given}: {host}:{port} is no Ray cluster's GCS server (port 6379 by default)")
