"""This machine as a cluster has for each process an equal share of each measured figure, and says its source."""

from pathlib import Path

import pytest

from whet.errors import OptionError
from whet.measure.machine import Limits, describe
from whet.parallel.links import Collective
from whet.parallel.machine_links import MachineLinks
from whet.planner import this_machine as module
from whet.planner.this_machine import this_machine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The numbers of processes whose links were asked for, and whether they were measured again."""
    numbers: list[tuple[int, bool]] = []

    def links(machine: object, num_processes: int, *, refresh: bool) -> MachineLinks:
        numbers.append((num_processes, refresh))
        times = {("send", 4): 2e-5, ("send", 64): 3e-5, ("all-reduce", 4): 5e-5, ("all-reduce", 2**20): 1e-3}
        times |= {("all-gather", 2**20): 2e-3, ("reduce-scatter", 8): 5e-5, ("reduce-scatter", 2**20): 4e-3}
        found = [
            Collective(operation=one, backend="gloo", num_bytes=size, seconds=s, bytes_per_s=size / s)  # type: ignore[arg-type]
            for (one, size), s in times.items()
        ]
        return MachineLinks(num_processes=num_processes, backend="gloo", collectives=tuple(found), busy="a neighbour")

    monkeypatch.setattr(module, "load_links", links)
    gemm = {"float32": 1e12, "bfloat16": 3e12, "float8_e4m3fn": 1e15, "int8": 5e12}
    monkeypatch.setattr(module, "load_limits", lambda machine, refresh: Limits(40e9, gemm))
    return numbers


def test_each_process_has_an_equal_share(asked: list[tuple[int, bool]]) -> None:
    one, two = this_machine(1), this_machine(2, refresh=True)
    assert asked == [(2, False), (2, True)]
    assert (one.num_chips, one.chips_per_node, one.between) == (1, 1, None)
    assert (two.num_chips, two.chips_per_node) == (2, 2)
    assert one.chip.flops == {"float32": 1e12, "bfloat16": 3e12, "int8": 5e12}
    for share in ("memory_bytes", "bytes_per_s", "power_w"):
        assert getattr(one.chip, share) == pytest.approx(2 * getattr(two.chip, share))
    assert one.chip.memory_bytes == describe().memory_bytes and one.chip.bytes_per_s == 40e9
    assert two.chip.flops["bfloat16"] == 1.5e12
    assert two.host.memory_bytes == 0  # nothing to relieve a process's memory to
    assert (two.inside.name, two.inside.latency_s) == ("gloo", 2e-5)
    assert two.inside.bytes_per_s == pytest.approx(2**20 / 1e-3)
    assert two.inside.gather_bytes_per_s == pytest.approx(2**20 / 4e-3) and two.inside.is_measured


def test_sources_name_the_measurement_and_what_disturbed_it(asked: list[tuple[int, bool]]) -> None:
    found = this_machine(2)
    assert "while it was busy (a neighbour)" in found.inside.source and "2 processes" in found.inside.source
    assert "1/2 of what whet limits measured" in found.chip.source and "busy" not in found.chip.source


@pytest.mark.parametrize("number", [0, -1, 10_000])
def test_a_number_of_processes_that_cannot_be(number: int, asked: list[tuple[int, bool]]) -> None:
    with pytest.raises(OptionError, match=rf"this machine has .* cores?: ask for 1 to \d+ processes; got {number}"):
        this_machine(number)
    assert not asked


@pytest.mark.slow
def test_it_is_measured_where_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path))
    found = this_machine(2)
    assert sorted(path.name.split("-")[0] for path in tmp_path.glob("*.json")) == ["limits", "links"]
    assert 1e6 < found.inside.bytes_per_s < 1e12 and 1e-7 < found.inside.latency_s < 1
    assert this_machine(2) == found
