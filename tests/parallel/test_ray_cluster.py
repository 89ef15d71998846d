"""Which addresses are a Ray cluster's, and what is said of those that are none; without Ray."""

import socket
import threading
import time
from contextlib import suppress

import pytest

from whet.errors import MissingExtra, OptionError
from whet.parallel import ray_cluster


@pytest.mark.parametrize(
    ("address", "found"), [("10.0.0.1:6379", ("10.0.0.1", 6379)), ("[::1]:6379", ("::1", 6379)), ("h:1", ("h", 1))]
)
def test_addresses(address: str, found: tuple[str, int]) -> None:
    assert ray_cluster.host_and_port(address) == found


@pytest.mark.parametrize("address", ["", "10.0.0.1", "10.0.0.1:", "h:0", "h:99999", "http://h:1", "x:y", "h:²"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(OptionError, match="write HOST:PORT"):
        ray_cluster.host_and_port(address)


def refused(address: str, option: str) -> str:
    with pytest.raises(OptionError) as raised, ray_cluster.joined(address, option):
        pass
    return str(raised.value)


def test_the_client_port_is_not_used() -> None:
    said = refused("ray://h:10001", "--workers ray=ray://h:10001")
    assert said.startswith("--workers ray=ray://h:10001: Ray's client port runs whatever it is sent")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said = refused(address, "--workers ray")
    assert said.startswith(f"--workers ray: no Ray cluster answers at {address} (")


def answering(said: bytes) -> int:
    """The port of a server that answers the first bytes of its only client so."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with server, server.accept()[0] as connection, suppress(OSError):
            connection.recv(100)
            connection.sendall(said)
            time.sleep(0.2)

    threading.Thread(target=answer, daemon=True).start()
    return int(server.getsockname()[1])


def test_another_server_at_the_address() -> None:
    said = refused(f"127.0.0.1:{answering(b'HTTP/1.1 400 Bad Request')}", "--ray there")
    assert "is no Ray cluster; give the address that ray start --head has printed" in said


def test_one_that_says_nothing_is_given_up_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert f"no Ray cluster answers at {address}" in refused(address, "--ray there")


def test_a_computer_that_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.process_iter", lambda names: iter(()))
    address = f"127.0.0.1:{answering(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))}"
    assert f"this computer is no node of the Ray cluster at {address}" in refused(address, "--ray there")


def test_other_versions_and_tokens_are_said_plainly() -> None:
    said = ray_cluster._why_not(RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9"))
    assert said == "the Ray cluster runs other versions: Version mismatch: The cluster was started with: Ray: 2.9"
    assert "asks for its token" in ray_cluster._why_not(RuntimeError("InvalidAuthToken: token is wrong"))


def test_without_ray_an_extra_that_exists_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import tomllib
    from pathlib import Path

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra) as raised:
        ray_cluster.check_installed("whet tune --workers ray")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert raised.value.extra in project["optional-dependencies"]
