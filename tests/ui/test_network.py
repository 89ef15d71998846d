"""Ports and addresses: what can be bound, and what means this machine alone."""

import socket

import pytest

from whet.errors import OptionError
from whet.ui.network import (
    LOOPBACK,
    bind,
    checked_keys,
    checked_port,
    http_url,
    is_key,
    is_loopback,
    listen,
    names_loopback,
    origin,
)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("192.0.2.1", 0), ("no.such.host.invalid", 0)])
def test_an_address_that_cannot_be_had(host: str, port: int) -> None:
    with pytest.raises(OptionError):
        bind(host, port)


def test_a_port_out_of_range_is_named_as_the_user_named_it() -> None:
    assert checked_port(0, "port") == 0
    assert checked_port(65535, "port") == 65535
    with pytest.raises(OptionError, match=r"^port takes 0 \(any free port\) to 65535; got 99999$"):
        bind(LOOPBACK, 99_999)
    with pytest.raises(OptionError, match=r"^--port takes 0 \(any free port\) to 65535; got -1$"):
        checked_port(-1, "--port")


def test_a_port_in_use_is_one_clear_message() -> None:
    other = socket.create_server((LOOPBACK, 0))
    port = other.getsockname()[1]
    with other, pytest.raises(OptionError, match=f"port {port} of 127.0.0.1 is in use"):
        bind(LOOPBACK, port)


def test_nobody_can_connect_before_it_listens() -> None:
    with bind(LOOPBACK, 0) as bound:
        address = bound.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        listen(bound, 1)
        socket.create_connection(address, timeout=5).close()


def test_another_process_may_listen_first() -> None:
    first = bind(LOOPBACK, 0)
    second = bind(LOOPBACK, first.getsockname()[1])
    with first, second:
        listen(first, 1)
        with pytest.raises(OptionError, match="is in use"):
            listen(second, 1)


def test_the_address_in_a_url() -> None:
    assert http_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert http_url("::1", 80) == "http://[::1]:80"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)
    assert names_loopback(f"[{host}]:8000" if ":" in host else f"{host}:8000")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "192.168.0.1", "evil.example", "127.0.0.1.evil.example", "[::1"])
def test_others_reach_it_too(host: str) -> None:
    assert not is_loopback(host)
    assert not names_loopback(host)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("*", "*"),
        ("HTTP://Example.org:80", "http://example.org"),
        ("https://example.org:443", "https://example.org"),
        ("http://example.org:443", "http://example.org:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_origin_as_browsers_write_it(given: str, found: str) -> None:
    assert origin(given) == found


@pytest.mark.parametrize(
    "given", ["", "example.org", "http://", "http://a/b", "http://u@a", "http://*.a", "http://a:x"]
)
def test_what_is_no_origin(given: str) -> None:
    with pytest.raises(OptionError, match="an origin is SCHEME://HOST"):
        origin(given)


def test_keys() -> None:
    keys = checked_keys(["first", "second"])
    assert is_key("first", keys) and is_key("second", keys)
    assert not any(is_key(other, keys) for other in ("", "firs", "first ", "FIRST", "\ud800"))
    assert not is_key("", ())
    for bad in ("", "with space", "ümlaut", "line\n"):
        with pytest.raises(OptionError, match="--api-key: a key is"):
            checked_keys(["good", bad])
