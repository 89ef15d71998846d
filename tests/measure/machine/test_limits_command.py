"""`whet limits`: a table that fits, or one JSON object."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.cli.limits import limits
from whet.measure.machine import Gpu, Limits, Link, Machine, Node, Topology, describe
from whet.measure.machine.measured_limits import limits as measured_limits
from whet.measure.machine.topology import LinkKind
from whet.parallel.links import Collective
from whet.parallel.machine_links import MachineLinks


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each load was a refresh."""
    monkeypatch.setenv("WHET_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    loads: list[bool] = []

    def load(machine: Machine, *, refresh: bool, device: str) -> Limits:
        loads.append(refresh)
        return Limits(
            read_bandwidth=47e9,
            gemm={"float32": 390e9, "bfloat16": 2575e9},
            device=device,
            cached_bandwidth=((2**18, 300e9), (2**19, 290e9)),
            notes=(
                "other processes [x] kept the machine busy, and this is a long line that has to be broken somewhere",
            ),
        )

    monkeypatch.setattr("whet.measure.machine.measured_limits.load_limits", load)
    return loads


def test_table(capsys: pytest.CaptureFixture[str], measured: list[bool]) -> None:
    limits()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in ("390 GFLOP/s", "2,575 GFLOP/s", "6.60x", "47 GB/s", "256 KiB", "[x]", describe().fingerprint):
        assert part in text
    assert not any(measured)


def test_json(capsys: pytest.CaptureFixture[str], measured: list[bool]) -> None:
    limits(as_json=True, refresh=True)
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["fingerprint"] == describe().fingerprint
    assert found["limits"][-1]["gemm"]["bfloat16"] == 2575e9
    assert found["machine"]["cores"] == describe().cores
    assert found["topology"]["nodes"][0]["number"] == 0
    assert all(measured)


def test_the_function_gives_what_the_command_prints(capsys: pytest.CaptureFixture[str], measured: list[bool]) -> None:
    found = measured_limits(refresh=True)
    limits(as_json=True, refresh=True)
    assert json.loads(capsys.readouterr().out)["limits"] == json.loads(json.dumps([asdict(each) for each in found]))
    assert measured == [True] * 2 * len(found)


def test_more_than_a_cpu_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    limits()
    alone = capsys.readouterr().out
    nodes = (Node(0, (0, 1), 2**34), Node(1))
    gpus = (Gpu(0, "H100 [SXM]", (9, 0), 80 * 2**30, numa_node=0), Gpu(1, "H100"))
    links = (Link("GPU0", "GPU1", LinkKind.NVLINK, 18),)
    monkeypatch.setattr("whet.measure.machine.find_topology", lambda: Topology(nodes, gpus, ("mlx5_0",), links))
    limits()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "2 cores, 16 GiB",
        "no cores",
        "H100 [SXM] (sm_90), 80 GiB, NUMA node 0",
        "mlx5_0",
        "1 pair of GPUs by NV18",
    ):
        assert part in text and part not in alone


def test_links_are_shown_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {("send", 4): 2e-5, ("send", 2**16): 1e-4, ("reduce-scatter", 8): 4e-5, ("reduce-scatter", 2**16): 2e-3}
    timed = [
        Collective(operation=one, backend="gloo", num_bytes=size, seconds=s, bytes_per_s=size / s)  # type: ignore[arg-type]
        for (one, size), s in times.items()
    ]
    found = MachineLinks(num_processes=4, backend="gloo", collectives=tuple(timed), busy="a [neighbour] ran")
    refreshed: list[bool] = []

    def all_links(machine: Machine, *, refresh: bool) -> list[MachineLinks]:
        refreshed.append(refresh)
        return [found]

    monkeypatch.setattr("whet.parallel.machine_links.all_links", all_links)
    limits()
    assert not refreshed and "gloo" not in capsys.readouterr().out
    limits(links=True)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "between 4 processes, gloo",
        "64 KiB",
        "20.0 µs",
        "2.00 ms",
        "0.655 GB/s",
        "a [neighbour] ran meanwhile",
    ):
        assert part in text
    limits(links=True, as_json=True, refresh=True)
    [shown] = json.loads(capsys.readouterr().out)["links"]
    assert shown == found.model_dump(mode="json")
    assert refreshed == [False, True]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(chip=st.text("abcXYZ ()@-", min_size=1, max_size=120))
def test_long_names_fit(chip: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(chip, ("avx2",) * 20, 128, 2**40, "g" * 60, "1.2.3", "Linux x86_64", "3.12", "2.13.0+cu128", 64)
    shown: Callable[[], Machine] = lambda: machine  # noqa: E731
    monkeypatch.setattr("whet.measure.machine.describe", shown)
    limits()
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
