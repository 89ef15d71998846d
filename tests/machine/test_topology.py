"""The parts of a computer and their links: from recorded matrices of nvidia-smi, from any matrix, and from /sys."""

import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrices import COPIED, DGX, LEGEND, MIXED, SINGLE, VIRTUAL

from whet.errors import MachineError
from whet.machine import Gpu, Link, Node, Topology, find_topology, topology
from whet.machine.topology import LinkKind, numa_nodes, parse_matrix, pci_node, torch_gpus

MODULE = "whet.machine.topology"


def test_one_gpu() -> None:
    assert parse_matrix(SINGLE) == Topology((Node(0, tuple(range(16))),), (Gpu(0, numa_node=0),))
    assert parse_matrix(VIRTUAL) == Topology(gpus=(Gpu(0),))


def test_eight_gpus_with_nvlink_and_network_cards() -> None:
    found = parse_matrix(DGX)
    assert [gpu.numa_node for gpu in found.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.nodes[1] == Node(1, (*range(48, 96), *range(144, 192)))
    assert found.nics == ("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5")
    among = [found.link(f"GPU{i}", f"GPU{j}") for i, j in combinations(range(8), 2)]
    assert all(link is not None and link.kind is LinkKind.NVLINK and link.num_nvlinks == 18 for link in among)
    assert found.link("mlx5_4", "GPU7") == Link("GPU7", "mlx5_4", LinkKind.PXB)
    assert len(found.links) == 12 * 11 / 2
    assert found.summary == "28 pairs of GPUs by NV18; GPUs and network cards: 16 PXB, 16 SYS"


def test_mixed_links_of_an_older_driver() -> None:
    found = parse_matrix(MIXED)
    labels = {(link.first, link.second): link.label for link in found.links}
    assert labels == {
        ("GPU0", "GPU1"): "NV4", ("GPU0", "GPU2"): "PHB", ("GPU1", "GPU2"): "NODE", ("GPU0", "GPU3"): "SYS",
        ("GPU1", "GPU3"): "SYS", ("GPU2", "GPU3"): "SYS", ("GPU0", "mlx5_0"): "PIX", ("GPU1", "mlx5_0"): "PXB",
        ("GPU2", "mlx5_0"): "NODE", ("GPU3", "mlx5_0"): "SYS",
    }  # fmt: skip
    assert found.nodes[1].cpus == (24, *range(26, 48))


def test_a_matrix_that_was_copied_from_a_terminal() -> None:
    found = parse_matrix(COPIED)
    assert found.link("GPU1", "GPU0") == Link("GPU0", "GPU1", LinkKind.PIX)
    assert found.nodes == (Node(0, tuple(range(48))),)


def test_a_link_of_a_kind_to_come_is_left_out() -> None:
    found = parse_matrix(COPIED.replace("PIX", "C2C"))
    assert (len(found.gpus), found.links) == (2, ())


@pytest.mark.parametrize(
    "text",
    ["", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", LEGEND,
     DGX[: DGX.index("GPU7\t")], MIXED.replace("\tSYS\tPIX\t", "\t"), COPIED.partition("\nGPU0")[0]],
)  # fmt: skip
def test_what_is_no_whole_matrix_is_refused(text: str) -> None:
    with pytest.raises(MachineError, match="nvidia-smi topo -m"):
        parse_matrix(text)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any machine that the matrix can tell whole: each node has a GPU, each pair a link."""
    num_gpus = draw(st.integers(1, 6))
    homes = draw(st.lists(st.none() | st.integers(0, 3), min_size=num_gpus, max_size=num_gpus))
    nics = tuple(f"mlx5_{i}" for i in range(draw(st.integers(0, 3))))
    cpus = st.sets(st.integers(0, 40), min_size=1).map(lambda found: tuple(sorted(found)))
    nodes = tuple(Node(number, draw(cpus)) for number in sorted({home for home in homes if home is not None}))
    gpus = tuple(Gpu(i, numa_node=home) for i, home in enumerate(homes))
    kinds = st.sampled_from([kind for kind in LinkKind if kind is not LinkKind.NVLINK])
    links = []
    for first, second in combinations([*(f"GPU{i}" for i in range(num_gpus)), *nics], 2):
        bonded = draw(st.integers(0, 18))
        links.append(Link(first, second, LinkKind.NVLINK if bonded else draw(kinds), bonded))
    return Topology(nodes, gpus, nics, tuple(links))


def printed(found: Topology, *, by_name: bool) -> str:
    """The matrix as nvidia-smi would print it. by_name: as older drivers did, without a legend of network cards."""
    shown = {nic: nic if by_name else f"NIC{i}" for i, nic in enumerate(found.nics)}
    devices = [*(f"GPU{gpu.index}" for gpu in found.gpus), *found.nics]
    affinities = ["CPU Affinity", "NUMA Affinity", *([] if by_name else ["GPU NUMA ID"])]
    lines = ["\t".join(["", *(shown.get(device, device) for device in devices), *affinities])]
    cpus = {node.number: ",".join(map(str, node.cpus)) for node in found.nodes}
    for i, device in enumerate(devices):
        cells = [shown.get(device, device)]
        for other in devices:
            link = found.link(device, other)
            cells.append(" X " if link is None else link.label)
        if i < len(found.gpus):
            home = found.gpus[i].numa_node
            cells += ["N/A", "N/A"] if home is None else [cpus[home], str(home)]
            cells += [] if by_name else ["", "N/A"]
        lines.append("\t".join(cells))
    legend = [] if by_name else ["NIC Legend:", "", *(f"  {short}: {nic}" for nic, short in shown.items())]
    return "\n".join([*lines, LEGEND, *legend, ""])


@given(topologies(), st.booleans())
def test_any_matrix_comes_back_whole(given_topology: Topology, by_name: bool) -> None:
    found = parse_matrix(printed(given_topology, by_name=by_name))
    assert Counter(found.links) == Counter(given_topology.links)
    assert (found.nodes, found.gpus, found.nics) == (given_topology.nodes, given_topology.gpus, given_topology.nics)


@given(st.text("GPUX0N\t \n-,18", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_matrix(text)
    except MachineError:
        return
    assert found.gpus


def test_nodes_from_the_system(tmp_path: Path) -> None:
    for number, cpus, memory in ((0, "0-1,4\n", 1024), (10, "\n", 2048), (2, "2-3\n", 4096)):
        folder = tmp_path / f"node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpus)
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       {memory} kB\nNode {number} MemFree: 7 kB\n")
    assert numa_nodes(tmp_path) == (Node(0, (0, 1, 4), 2**20), Node(2, (2, 3), 2**22), Node(10, (), 2**21))


def test_without_a_list_of_nodes_there_is_one(tmp_path: Path) -> None:
    (node,) = numa_nodes(tmp_path / "none")
    assert node.number == 0 and node.cpus and node.memory_bytes > 0


def test_the_node_of_a_device(tmp_path: Path) -> None:
    for pci, text in (("0000:1b:00.0", "1\n"), ("0000:1c:00.0", "-1\n")):
        (tmp_path / pci).mkdir()
        (tmp_path / pci / "numa_node").write_text(text)
    assert [pci_node(pci, tmp_path) for pci in ("0000:1b:00.0", "0000:1c:00.0", "0000:1d:00.0", "")] == [
        1, None, None, None,
    ]  # fmt: skip


def test_gpus_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, total_memory=80 * 10**9, pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0
    )
    older = SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=15 * 10**9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: (properties, older)[index])
    monkeypatch.setattr(topology, "pci_node", lambda pci: 1 if pci else None)
    assert torch_gpus() == (
        Gpu(0, "NVIDIA H100", (9, 0), 80 * 10**9, "0000:1b:00.0", 1),
        Gpu(1, "Tesla T4", (7, 5), 15 * 10**9),
    )
    assert torch_gpus()[0].label == "NVIDIA H100 (sm_90)"


def gpus_at(*buses: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, f"G{bus}", (9, 0), 1, f"0000:{bus:02x}:00.0") for i, bus in enumerate(buses))


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with nvidia-smi, whose matrix is what the list holds."""
    prints = [MIXED]
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: SimpleNamespace(stdout=prints[0]))
    monkeypatch.setattr(topology, "numa_nodes", lambda: (Node(0), Node(1)))
    monkeypatch.setattr(topology, "_nvml_gpus", lambda: ())
    return prints


def test_links_go_to_torchs_numbers(smi: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts the fastest GPU first, and CUDA_VISIBLE_DEVICES hides one; the driver counts by PCI address."""
    monkeypatch.setattr(topology, "torch_gpus", lambda: gpus_at(0x40, 0x10, 0x20))
    monkeypatch.setattr(topology, "_nvml_gpus", lambda: gpus_at(0x10, 0x20, 0x30, 0x40))
    found = find_topology()
    assert [gpu.name for gpu in found.gpus] == ["G64", "G16", "G32"]
    assert [gpu.numa_node for gpu in found.gpus] == [1, 0, 0]
    bonded = found.link("GPU1", "GPU2")
    assert bonded is not None and bonded.label == "NV4"
    assert found.summary == "2 pairs of GPUs by SYS; 1 pair of GPUs by NV4; GPUs and network cards: 1 PIX, 1 PXB, 1 SYS"


def test_without_nvml_links_are_told_where_no_gpu_is_hidden(smi: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "torch_gpus", lambda: gpus_at(0x40, 0x10, 0x20, 0x30))
    assert len(find_topology().links) == 10
    first = find_topology().link("GPU1", "GPU2")
    assert first is not None and first.label == "NV4"
    monkeypatch.setattr(topology, "torch_gpus", lambda: gpus_at(0x40, 0x10))
    assert find_topology().links == ()


def test_gpus_that_torch_cannot_use_come_from_nvml(smi: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "torch_gpus", lambda: ())
    assert find_topology().gpus == ()
    monkeypatch.setattr(topology, "_nvml_gpus", lambda: gpus_at(0x10, 0x20, 0x30, 0x40))
    assert len(find_topology().links) == 10


def test_a_broken_matrix_costs_the_links_alone(
    smi: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topology, "torch_gpus", lambda: gpus_at(0x10))
    smi[0] = "Failed to initialize NVML: Driver/library version mismatch"
    assert (len(find_topology().gpus), find_topology().links) == (1, ())
    assert "the links between GPUs are not known" in caplog.text


@pytest.mark.skipif(bool(torch_gpus()), reason="for machines without a GPU")
def test_a_machine_without_gpus_has_its_nodes_alone() -> None:
    found = find_topology()
    assert (found.gpus, found.nics, found.links, found.summary) == ((), (), (), "")
    assert found.nodes and any(node.cpus for node in found.nodes)
