"""Which process is the server that a benchmark asks, where it runs on this machine."""

import contextlib
import socket
from urllib.parse import urlsplit

import psutil

from whet.network import is_loopback


def server_on_this_machine(url: str) -> list[int]:
    """Return the ids of the processes that listen at an address; none where it is another machine's.

    What such a server computes belongs to the measurement, so it is no load from outside.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not _is_here(parts.hostname or ""):
        return []
    with contextlib.suppress(psutil.Error, OSError):  # other users' sockets may be hidden
        connections = psutil.net_connections("tcp")
        found = {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port}
        return sorted(pid for pid in found if pid)
    return []


def _is_here(host: str) -> bool:
    """Tell whether a host is this machine, by one of its own addresses."""
    with contextlib.suppress(OSError, ValueError):  # a name that cannot be encoded is a ValueError
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
        own = {address.address for found in psutil.net_if_addrs().values() for address in found}
        return any(is_loopback(str(a)) or a in own for a in addresses)
    return False
