"""Bind addresses of this machine for servers, listen on them, and tell who can reach them and who may use them."""

import errno
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from whet.errors import OptionError

LOOPBACK = "127.0.0.1"

ANY_ORIGIN = "*"
"""Stands for pages of all origins."""

_PORTS = {"http": 80, "https": 443}


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket that does not listen yet, so nobody can connect to it. Port 0 takes any free one.

    Raises:
        OptionError: The port's number is out of range, or the address is in use, or does not belong to this machine.
    """
    checked_port(port, "port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only if the protocol is named. Otherwise each token would wait until the
    # one before is acknowledged.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _unusable(host, port, error) from error
    return bound


def checked_port(port: int, name: str) -> int:
    """Return a port; 0 means any free one. The user calls it `name`: "port" in Python, "--port" on the command line.

    Raises:
        OptionError: No port has this number.
    """
    if not 0 <= port <= 65535:
        raise OptionError(f"{name} takes 0 (any free port) to 65535; got {port}")
    return port


def bind_file(path: str) -> socket.socket:
    """Return a Unix socket that is bound to a path, and does not listen yet."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(path)
    return bound


def address_of(bound: socket.socket) -> tuple[str, int]:
    """Return the host and the port of a bound socket; the path and 0 where it is a Unix socket."""
    if bound.family == socket.AF_UNIX:
        return str(bound.getsockname()), 0
    host, port = bound.getsockname()[:2]
    return host, port


def listen(bound: socket.socket, backlog: int) -> None:
    """Let clients connect to a bound socket; `backlog` of them may wait. The socket is closed if that fails.

    Raises:
        OptionError: Another process listens there by now.
    """
    host, port = address_of(bound)
    try:
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise _unusable(host, port, error) from error


def http_url(host: str, port: int, *, is_tls: bool = False) -> str:
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine alone."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def names_loopback(host_header: str) -> bool:
    """Return whether a request's Host header, with or without a port, names this machine alone.

    A foreign site can point a name of its own at 127.0.0.1, and make a browser send requests there and read the
    answers. The Host header then holds the foreign name.
    """
    with suppress(ValueError):
        return is_loopback(urlsplit(f"//{host_header}").hostname or "")
    return False


def origin(given: str) -> str:
    """Return an origin as browsers write it: in lower case, without the scheme's default port.

    Raises:
        OptionError: It is no origin, for example because a path follows the host.
    """
    if given == ANY_ORIGIN:
        return given
    try:
        parts = urlsplit(given)
        port, host = parts.port, parts.hostname
    except ValueError:
        port, host = None, None
    rest = host and (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if not host or rest or not parts.scheme or ANY_ORIGIN in host:
        raise OptionError(f"--cors-origin {given}: an origin is SCHEME://HOST or SCHEME://HOST:PORT, or * for all")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, _PORTS.get(parts.scheme)) else f":{port}")


def checked_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the API keys of a server.

    Raises:
        OptionError: A key is empty, or cannot stand in a header.
    """
    found = tuple(keys)
    for key in found:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise OptionError("--api-key: a key is printable ASCII without spaces, and not empty")
    return found


def is_key(given: str, keys: Iterable[str]) -> bool:
    """Return whether a key is among a server's. The time that this takes does not tell how much of the key matches."""
    digest = hashlib.sha256(given.encode(errors="surrogatepass")).digest()
    same = [hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in keys]
    return any(same)


def _unusable(host: str, port: int, error: OSError) -> OptionError:
    if error.errno == errno.EADDRINUSE:
        return OptionError(f"port {port} of {host} is in use; name another one, or 0 for any that is free")
    return OptionError(
        f"cannot listen on {host} port {port}: {error.strerror or error}; give an address of this machine, as 127.0.0.1"
    )
