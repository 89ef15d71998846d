"""What --ray takes, and what it refuses before anything is loaded or joined."""

import re
import socket
import sys

import pytest

from refusals import refusal
from whet.errors import OptionError
from whet.server.ray_serve.options import RayOptions


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "[::1]:6379"])
def test_addresses(address: str) -> None:
    assert RayOptions(address=address).address == address


@pytest.mark.parametrize("address", ["", "10.0.0.1", "10.0.0.1:", "h:0", "h:99999", "http://h:1", "x:y"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(OptionError, match=f"^--ray {re.escape(address)}: .*write auto"):
        RayOptions(address=address)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray", "nowhere"], "--ray nowhere: write auto"),
        (["--ray", "ray://h:10001"], "--ray ray://h:10001: Ray's client port runs whatever it is sent"),
        (["--ray", "local", "--replicas", "none"], "--replicas 'none'"),
        (["--ray", "local", "--ray-cpus", "0"], "--ray-cpus 0"),
        (["--ray", "auto", "--ray-dashboard"], "--ray-dashboard is for --ray local"),
        (["--ray-cpus", "2"], "--ray-cpus is for --ray ADDRESS"),
    ],
)
def test_options_that_cannot_be(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert message in refusal(capsys, "docs-gpt", *options)


def test_without_ray(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    assert "whet serve --ray needs ray[serve], which is not installed" in refusal(capsys, "docs-gpt", "--ray", "auto")


def test_states_would_lie_on_one_machine(capsys: pytest.CaptureFixture[str], tmp_path: str) -> None:
    pytest.importorskip("ray.serve")
    assert "--state-dir: with --ray" in refusal(capsys, "docs-gpt", "--ray", "auto", "--state-dir", str(tmp_path))


def test_an_address_that_nobody_listens_at(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray.serve")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said = refusal(capsys, "docs-gpt", "--ray", address)
    assert f"--ray {address}: no Ray cluster answers at {address}" in said
