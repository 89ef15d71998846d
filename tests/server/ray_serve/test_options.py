"""What --ray takes, and what it refuses before anything is loaded or joined."""

import contextlib
import platform
import re
import socket
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from refusals import refusal
from whet import __version__
from whet.errors import OptionError
from whet.server.ray_serve import cluster
from whet.server.ray_serve.nodes import Node, Survey
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


@pytest.mark.parametrize(
    ("version", "free_bytes", "options", "message"),
    [
        ("0.0.9", 2**40, [], "--ray: 10.0.0.2 has whet 0.0.9, and this process has "),
        (__version__, 2**20, [], "--replicas 1: each takes about "),
        (__version__, 2**40, ["--replicas", "3"], "--replicas 3: with 1 of its 2 cores each, the cluster holds 2; "),
    ],
)
def test_a_cluster_that_cannot_run_them_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    free_bytes: int,
    options: list[str],
    message: str,
) -> None:
    serve = pytest.importorskip("ray.serve")

    def nodes(directories: Sequence[str]) -> list[Node]:
        return [Node("10.0.0.2", 2, Survey(version, platform.python_version(), free_bytes, {}))]

    monkeypatch.setattr(cluster, "connected", lambda options: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "nodes", nodes)
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications={}))
    monkeypatch.setattr(serve, "start", lambda **options: pytest.fail("Ray Serve was started"))
    assert message in refusal(capsys, "docs-gpt", "--ray", "auto", *options)


def test_a_cluster_of_other_versions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.serve")

    def init(**options: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1\n")

    monkeypatch.setattr("whet.parallel.ray_cluster._check_answers", lambda *address: None)
    monkeypatch.setattr("whet.parallel.ray_cluster._check_node_here", lambda address: None)
    monkeypatch.setattr(ray, "init", init)
    said = refusal(capsys, "docs-gpt", "--ray", "10.0.0.1:6379")
    assert "--ray 10.0.0.1:6379: the Ray cluster runs other versions: Version mismatch: " in said
    assert said.endswith("Ray: 2.9.0 Python: 3.9.1")


def test_processes_of_one_replica_would_not_meet(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray.serve")
    said = refusal(capsys, "docs-gpt", "--ray", "auto", "--tensor-parallel-size", "2")
    assert "--tensor-parallel-size: with --ray, a replica is one process" in said
