"""`whet doctor --nodes`: whether processes could meet at addresses of this machine and of others."""

import socket

import pytest

from whet.errors import OptionError
from whet.installation import nodes as module
from whet.installation.nodes import nodes, text


def test_a_port_of_this_machine_is_free_or_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        [found] = nodes(f"127.0.0.1:{port}")
        assert (found.host, found.port, found.state, found.is_fine) == ("127.0.0.1", port, "in use", False)
        assert "choose another one with torchrun --master-port" in found.told
    [found] = nodes(f"localhost:{port}")
    assert (found.state, found.is_fine) == ("free", True)


@pytest.mark.parametrize(
    ("error", "state", "is_fine"),
    [
        (ConnectionRefusedError(), "reachable", True),
        (TimeoutError("timed out"), "silent", False),
        (None, "answers", True),
    ],
)
def test_another_machine_answers_refuses_or_is_silent(
    monkeypatch: pytest.MonkeyPatch, error: OSError | None, state: str, is_fine: bool
) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address)
        if error is not None:
            raise error
        return socket.socket()

    monkeypatch.setattr(module.socket, "create_connection", connect)
    [found] = nodes("192.0.2.7")
    assert asked == [("192.0.2.7", 29500)]
    assert (found.state, found.is_fine) == (state, is_fine)
    assert f"192.0.2.7:29500  {state}: " in text([found])
    assert text([found]).startswith("whet doctor: all addresses" if is_fine else "whet doctor: 1 of 1 addresses cannot")


def test_a_host_without_an_address_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(host: str) -> str:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(module.socket, "gethostbyname", no_address)
    [found] = nodes("nowhere:29500")
    assert (found.state, found.is_fine) == ("unknown", False)


@pytest.mark.parametrize("given", ["", "node:0", "node:port", "node:70000", "node1,,node2"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match="--nodes takes addresses such as"):
        nodes(given)
