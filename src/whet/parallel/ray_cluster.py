"""Join a cluster of Ray, or start Ray here. What is wrong is said within seconds, and in one line."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from whet.errors import MissingExtra, OptionError, reason
from whet.ui.network import LOOPBACK

HERE = ""
"""Stands for the cluster that $RAY_ADDRESS names, or that runs on this computer."""

_ANSWER_S = 5.0  # seconds for the head to accept a connection, and to say its first word
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # as gRPC begins: RFC 9113, section 3.4
_FRAME_BYTES, _SETTINGS = 9, 4  # the head of a frame, and the type of the first one that a server sends
_START = "ray start --head --include-dashboard=false"


def check_installed(purpose: str, module: str = "ray") -> Any:
    """Return the module ray, or a part of it.

    Args:
        purpose: What needs it, as the beginning of a sentence.

    Raises:
        MissingExtra: It cannot be imported.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it as it is imported; nothing is sent to anybody
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra("ray[serve]", "ray", purpose) from error


def host_and_port(address: str, forms: str = "HOST:PORT") -> tuple[str, int]:
    """Return the host and the port of an address.

    Args:
        forms: What may be written in its place.

    Raises:
        OptionError: It has another form.
    """
    if address.startswith("ray://"):
        raise OptionError(
            "Ray's client port runs whatever it is sent, and whet does not use it; start whet on a machine of the "
            f"cluster, and write {forms}"
        )
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536) or "/" in host:
        raise OptionError(f"write {forms}")
    return host, int(port)


@contextlib.contextmanager
def joined(address: str, option: str) -> Iterator[Any]:
    """Join a cluster as long as the block runs, and yield the module ray.

    Args:
        address: HOST:PORT, or HERE.
        option: What the user has written to name the cluster; messages begin with it.

    Raises:
        OptionError: No cluster answers, this computer is no node of it, or it runs other versions.
    """
    try:
        host, port = host_and_port(address or _found_here())
        found = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _check_answers(found, host, port)
        _check_node_here(found)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from error
    with _begun(option, address=found) as ray:
        yield ray


@contextlib.contextmanager
def started(option: str, *, dashboard: bool) -> Iterator[Any]:
    """Run Ray on this computer as long as the block runs, with ports on 127.0.0.1 alone, and yield the module ray.

    Raises:
        OptionError: Ray does not start.
    """
    how = {"include_dashboard": dashboard, "dashboard_host": LOOPBACK, "_node_ip_address": LOOPBACK}
    with _begun(option, address="local", **how) as ray:
        yield ray


@contextlib.contextmanager
def _begun(option: str, **how: Any) -> Iterator[Any]:
    import ray

    try:
        ray.init(**how, namespace="whet", logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError and errors of its own
        raise OptionError(f"{option}: {_why_not(error)}") from error
    try:
        with _without_reports():
            yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _without_reports() -> Iterator[None]:
    """Keep Ray from printing a page on stdout for each node that ends; who asked the node says so in a line."""
    from ray._private import worker

    printed = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *args, **kwargs: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


def _found_here() -> str:
    """Return HOST:PORT of the cluster that $RAY_ADDRESS names, or that this computer is a node of.

    Raises:
        OptionError: There is none.
    """
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address("auto")
    except (ConnectionError, ValueError, OSError) as error:
        if "RAY_ADDRESS" in os.environ:
            raise OptionError(f"$RAY_ADDRESS is {os.environ['RAY_ADDRESS']!r}; it must be HOST:PORT") from error
        found = None
    if not found:
        raise OptionError(f"no Ray cluster runs on this computer; start one: {_START}")
    return str(found)


def _check_answers(address: str, host: str, port: int) -> None:
    """Check that something answers at an address as a cluster's head does. Ray itself would wait for minutes.

    Raises:
        OptionError: Nothing does, or it is something else.
    """
    head = b""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return  # the first word would be encrypted
            connection.sendall(_PREFACE)
            while len(head) < _FRAME_BYTES and (more := connection.recv(64)):
                head += more
    except OSError as error:
        raise OptionError(
            f"no Ray cluster answers at {address} ({reason(error)}); is its head running? To start one: {_START}"
        ) from error
    if len(head) < _FRAME_BYTES or head[3] != _SETTINGS:
        raise OptionError(
            f"what answers at {address} is no Ray cluster; give the address that ray start --head has printed"
        )


def _check_node_here(address: str) -> None:
    """Check that a node of Ray runs on this computer, without which a process cannot join a cluster.

    Raises:
        OptionError: None does.
    """
    import psutil

    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        raise OptionError(
            f"this computer is no node of the Ray cluster at {address}; make it one (ray start --address={address}, "
            "with --num-cpus=0 if no replica is to run here), or start whet on a node"
        )


def _why_not(error: Exception) -> str:
    """Return why Ray does not join or start."""
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the Ray cluster runs other versions: {text}"
    if "token" in text.lower():
        return f"the Ray cluster asks for its token, and another one or none was found: {reason(error)}"
    return f"Ray cannot join the cluster, or start here ({reason(error)})"
