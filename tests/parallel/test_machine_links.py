"""Links between this machine's processes are measured once, kept, and measured again where something disturbed them."""

import os
from pathlib import Path

import pytest

from whet.errors import MachineError
from whet.measure.machine import describe
from whet.parallel import machine_links
from whet.parallel.links import OPERATIONS, Collective
from whet.parallel.machine_links import MachineLinks, all_links, load_links, measure_links


def links(seconds: float, busy: str = "", number: int = 2) -> MachineLinks:
    found = [
        Collective(operation=one, backend="gloo", num_bytes=size, seconds=seconds * size, bytes_per_s=1 / seconds)
        for one in OPERATIONS
        for size in (4, 64)
    ]
    return MachineLinks(num_processes=number, backend="gloo", collectives=tuple(found), busy=busy)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MachineLinks]:
    """What the next measurements find, the last first."""
    monkeypatch.setenv("WHET_CACHE", str(tmp_path))
    to_come: list[MachineLinks] = []
    monkeypatch.setattr(machine_links, "measure_links", lambda number, *, device: to_come.pop())
    return to_come


def test_they_are_measured_once_for_each_number_of_processes(measured: list[MachineLinks], tmp_path: Path) -> None:
    measured += [links(2e-6, number=4), links(1e-6)]
    first, second = all_links(describe())
    assert all_links(describe()) == [first, second]
    assert (first.num_processes, second.num_processes) == (2, 4)
    assert first.latency_s == pytest.approx(4e-6) and first.bytes_per_s == pytest.approx(1e6)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"links-{describe().fingerprint}-cpu-{number}.json" for number in (2, 4)
    }


def test_a_refresh_keeps_the_best_of_all(measured: list[MachineLinks]) -> None:
    measured += [links(3e-6), links(1e-6, "a neighbour"), links(2e-6)]
    load_links(describe(), 2)
    better = load_links(describe(), 2, refresh=True)
    assert better.latency_s == pytest.approx(4e-6)
    assert better.busy == ""  # one of the two was quiet
    assert load_links(describe(), 2, refresh=True) == better


def test_what_a_busy_machine_disturbed_is_measured_again_once_it_is_quiet(
    measured: list[MachineLinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured += [links(1e-6), links(3e-6, "a neighbour")]
    monkeypatch.setenv("WHET_PRETENDED_LOAD", str(os.cpu_count()))
    assert load_links(describe(), 2).busy == load_links(describe(), 2).busy == "a neighbour"
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "0")
    assert load_links(describe(), 2) == links(1e-6)
    assert not measured


@pytest.mark.parametrize("content", ["{", '{"format": 0}', '{"fingerprint": "another", "links": {}}'])
def test_a_damaged_file_is_measured_again(measured: list[MachineLinks], tmp_path: Path, content: str) -> None:
    (tmp_path / f"links-{describe().fingerprint}-cpu-2.json").write_text(content)
    measured.append(links(1e-6))
    assert load_links(describe(), 2) == load_links(describe(), 2) == links(1e-6)


def test_processes_that_cannot_meet_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(MachineError, match=r"links between 2 processes cannot be measured: .*whet doctor") as raised:
        measure_links(2, sizes=(4,))
    assert "\n" not in str(raised.value) and "nosuch0" in str(raised.value)


@pytest.mark.parametrize("load", ["0", "64"])
def test_two_processes_time_everything(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_PRETENDED_LOAD", load)
    found = measure_links(2, sizes=(4, 4096))
    assert [(one.operation, one.num_bytes) for one in found.collectives] == [
        (operation, 8 if size == 4 and operation in ("all-gather", "reduce-scatter") else size)
        for operation in OPERATIONS
        for size in (4, 4096)
    ]
    assert all(1e-7 < one.seconds < 10 for one in found.collectives)
    assert ("other processes used" in found.busy) is (load != "0")
