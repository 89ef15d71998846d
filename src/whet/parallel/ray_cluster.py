"""Join a cluster of Ray, and say in one line, within seconds, why that cannot be."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from whet.errors import MissingExtra, OptionError, reason

_ANSWER_S = 5.0  # seconds for the head to accept a connection, and to say its first word
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # as gRPC begins: RFC 9113, section 3.4
_FRAME_BYTES, _SETTINGS = 9, 4  # the head of a frame, and the type of the first one that a server sends
_START = "ray start --head --include-dashboard=false"


@contextlib.contextmanager
def joined(address: str, purpose: str) -> Iterator[Any]:
    """Join a cluster as long as the block runs, and yield the module ray.

    Args:
        address: HOST:PORT; "" for the cluster that $RAY_ADDRESS names, or that runs on this computer.
        purpose: What needs the cluster, as the beginning of a sentence.

    Raises:
        MissingExtra: Ray is not installed.
        OptionError: No cluster answers, or it runs other versions.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", purpose) from error
    found = _address(address)
    _check_answers(found)
    try:
        ray.init(
            found,
            namespace="whet",
            configure_logging=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError and errors of its own
        raise OptionError(_words(found, error)) from error
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


def _address(address: str) -> str:
    """Return HOST:PORT of the cluster that is meant.

    Raises:
        OptionError: No cluster runs here.
    """
    from ray._private.services import canonicalize_bootstrap_address

    if "://" in address:
        raise OptionError(f"{address}: give HOST:PORT of the cluster's head, which this computer must be a node of")
    try:
        found = canonicalize_bootstrap_address(address or "auto")
    except (ConnectionError, ValueError, OSError) as error:
        if address:
            raise OptionError(f"{address} is no address of a Ray cluster; give HOST:PORT") from error
        raise OptionError(f"no Ray cluster runs on this computer; start one: {_START}") from error
    if not found:
        raise OptionError(f"no Ray cluster runs on this computer; start one: {_START}")
    return str(found)


def _check_answers(address: str) -> None:
    """Check that something answers at an address as a cluster's head does. Ray itself would wait for longer.

    Raises:
        OptionError: Nothing does, or it is something else.
    """
    host, _, port = address.rpartition(":")
    head = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return  # the first word would be encrypted
            connection.sendall(_PREFACE)
            while len(head) < _FRAME_BYTES and (more := connection.recv(64)):
                head += more
    except (OSError, ValueError) as error:
        raise OptionError(
            f"no Ray cluster answers at {address} ({reason(error)}); is its head running? To start one: {_START}"
        ) from error
    if len(head) < _FRAME_BYTES or head[3] != _SETTINGS:
        raise OptionError(f"what answers at {address} is no Ray cluster; give the address that ray start has printed")


def _words(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the Ray cluster at {address} runs other versions: {text}"
    if "token" in text.lower():
        return f"the Ray cluster at {address} asks for its token, and another one or none was found: {reason(error)}"
    return f"what answers at {address} is no Ray cluster that can be joined ({reason(error)})"
