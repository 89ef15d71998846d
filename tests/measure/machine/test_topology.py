"""The parts of a computer and their links: from recorded matrices of nvidia-smi, from any matrix, and from /sys."""

import subprocess
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrices import COPIED, DGX, LEGEND, MIXED, SINGLE, VIRTUAL

from whet.errors import MachineError
from whet.measure.machine import Gpu, Link, Node, Topology, find_topology, topology
from whet.measure.machine.topology import LinkKind, numa_nodes, parse_matrix, parse_query, pci_node, torch_gpus


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
    properties = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=80 * 10**9, uuid="5f3c-1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: properties)
    assert torch_gpus() == (Gpu(0, "NVIDIA H100", (9, 0), 80 * 10**9, "GPU-5f3c-1"),)
    assert torch_gpus()[0].label == "NVIDIA H100 (sm_90)"


QUERY = """0, GPU-5f3c0000-aa, 00000000:1B:00.0, NVIDIA H100 80GB HBM3, 81559, 9.0
1, GPU-5f3c0001-bb, 0000000F:01:00.0, NVIDIA GB10, [N/A], 12.1
"""


def test_gpus_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "pci_node", {"0000:1b:00.0": 1}.get)
    assert parse_query(QUERY) == (
        Gpu(0, "NVIDIA H100 80GB HBM3", (9, 0), 81559 * 2**20, "GPU-5f3c0000-aa", "0000:1b:00.0", 1),
        Gpu(1, "NVIDIA GB10", (12, 1), 0, "GPU-5f3c0001-bb", "000f:01:00.0"),
    )
    assert parse_query("No devices were found\n") == ()


@pytest.mark.parametrize("as_bytes", [False, True])
def test_gpus_of_nvml(as_bytes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(value: str) -> str | bytes:
        return value.encode() if as_bytes else value

    class FakeError(Exception):
        pass

    library = SimpleNamespace(
        NVMLError=FakeError,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetCudaComputeCapability=lambda handle: [9, 0],
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=7),
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=text("00000000:1B:00.0")),
        nvmlDeviceGetName=lambda handle: text("H100"),
        nvmlDeviceGetUUID=lambda handle: text("GPU-1"),
    )
    monkeypatch.setattr(topology, "nvml", lambda: nullcontext(library))
    monkeypatch.setattr(topology, "pci_node", lambda pci: None)
    assert topology._nvml_gpus() == (Gpu(0, "H100", (9, 0), 7, "GPU-1", "0000:1b:00.0"),)

    def fails(handle: int) -> str:
        raise FakeError

    library.nvmlDeviceGetUUID = fails
    assert topology._nvml_gpus() == ()


def of_torch(*names: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, name, (9, 0), 1, f"GPU-{name}") for i, name in enumerate(names))


def of_driver(*names: str) -> tuple[Gpu, ...]:
    return tuple(
        replace(gpu, pci=f"0000:{i + 1}0:00.0", numa_node=1 if i == 2 else None)
        for i, gpu in enumerate(of_torch(*names))
    )


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with nvidia-smi, which prints what the dict holds by the first argument."""
    prints = {"topo": MIXED}

    def run(command: list[str], **options: object) -> SimpleNamespace:
        if command[1].partition("=")[0] not in prints:
            raise subprocess.CalledProcessError(6, command)
        return SimpleNamespace(stdout=prints[command[1].partition("=")[0]])

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(topology, "numa_nodes", lambda: (Node(0), Node(1)))
    monkeypatch.setattr(topology, "_nvml_gpus", lambda: ())
    return prints


def test_links_go_to_torchs_numbers(smi: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts the fastest GPU first, and CUDA_VISIBLE_DEVICES hides one; the driver counts by PCI address."""
    monkeypatch.setattr(topology, "torch_gpus", lambda: of_torch("d", "a", "b"))
    monkeypatch.setattr(topology, "_nvml_gpus", lambda: of_driver("a", "b", "c", "d"))
    found = find_topology()
    assert [(gpu.name, gpu.pci) for gpu in found.gpus] == [
        ("d", "0000:40:00.0"), ("a", "0000:10:00.0"), ("b", "0000:20:00.0"),
    ]  # fmt: skip
    assert [gpu.numa_node for gpu in found.gpus] == [1, 0, 0]
    bonded = found.link("GPU1", "GPU2")
    assert bonded is not None and bonded.label == "NV4"
    assert found.summary == "2 pairs of GPUs by SYS; 1 pair of GPUs by NV4; GPUs and network cards: 1 PIX, 1 PXB, 1 SYS"


def test_without_nvml_the_program_names_the_gpus(smi: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "torch_gpus", lambda: of_torch("5f3c0001-bb", "5f3c0000-aa"))
    assert find_topology().links == ()  # whose number is which is not known
    smi["--query-gpu"] = QUERY
    (link,) = (link for link in find_topology().links if "mlx5_0" not in (link.first, link.second))
    assert ({link.first, link.second}, link.label) == ({"GPU0", "GPU1"}, "NV4")
    assert find_topology().link("GPU1", "mlx5_0") == Link("GPU1", "mlx5_0", LinkKind.PIX)


def test_gpus_that_torch_cannot_use_come_from_the_driver(smi: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "torch_gpus", lambda: ())
    assert find_topology().gpus == ()
    monkeypatch.setattr(topology, "_nvml_gpus", lambda: of_driver("a", "b", "c", "d"))
    assert len(find_topology().links) == 10
    assert find_topology().gpus[2].numa_node == 1  # as the system says; the matrix says 0


def test_a_broken_matrix_costs_the_links_alone(
    smi: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topology, "torch_gpus", lambda: of_torch("a"))
    smi["topo"] = "Failed to initialize NVML: Driver/library version mismatch"
    assert (len(find_topology().gpus), find_topology().links) == (1, ())
    assert "the links between GPUs are not known" in caplog.text


@pytest.mark.skipif(bool(torch_gpus()), reason="for machines without a GPU")
def test_a_machine_without_gpus_has_its_nodes_alone() -> None:
    found = find_topology()
    assert (found.gpus, found.nics, found.links, found.summary) == ((), (), (), "")
    assert found.nodes and any(node.cpus for node in found.nodes)
