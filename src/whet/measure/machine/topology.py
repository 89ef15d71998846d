"""Find how the parts of this computer are connected: NUMA nodes, GPUs, network cards, and the links between them.

NUMA nodes come from /sys, GPUs from torch and from the driver (NVML, or else `nvidia-smi`), and links from the matrix
that `nvidia-smi topo -m` prints. Parts that a machine lacks are left out: without GPUs there are only NUMA nodes.
"""

import logging
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil
import torch

from whet.errors import MachineError
from whet.measure.cores import NODES, core_numbers, numa_cores
from whet.measure.machine.nvidia import nvml

_LOG = logging.getLogger("whet")
_PCI = Path("/sys/bus/pci/devices")
_SMI_LIMIT_S = 30.0  # without persistence mode, the driver wakes each GPU up first

_QUERY = "index,uuid,pci.bus_id,name,memory.total,compute_cap"
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_CELL = re.compile(r"[A-Z][A-Z0-9/]*")
_STYLING = re.compile(r"\x1b\[[\d;]*m")


class LinkKind(StrEnum):
    """Name how two devices are connected, in `nvidia-smi`'s abbreviations, the fastest first."""

    NVLINK = "NV"
    PIX = "PIX"  # at most one PCIe bridge lies between them
    PXB = "PXB"  # several PCIe bridges
    PHB = "PHB"  # the PCIe host bridge, typically the CPU
    NODE = "NODE"  # several host bridges of one NUMA node
    SYS = "SYS"  # the interconnect between NUMA nodes


@dataclass(frozen=True)
class Gpu:
    """Describe one GPU.

    Attributes:
        index: torch's number, as in cuda:0; the driver's number where torch sees no GPU.
        name: The driver's name of the GPU; "" where it is not known.
        capability: CUDA's compute capability, as (9, 0); None where it is not known.
        memory_bytes: The GPU's whole memory; 0 where it is not known.
        uuid: The driver's identifier, as "GPU-5f3c...", or "".
        pci: The PCI address, as "0000:1b:00.0", or "".
        numa_node: The NUMA node that the GPU is attached to; None where there is none, or it is not known.
    """

    index: int
    name: str = ""
    capability: tuple[int, int] | None = None
    memory_bytes: int = 0
    uuid: str = ""
    pci: str = ""
    numa_node: int | None = None

    @property
    def label(self) -> str:
        """Return the name with the architecture: "NVIDIA H100 80GB HBM3 (sm_90)"."""
        return self.name if self.capability is None else f"{self.name} (sm_{self.capability[0]}{self.capability[1]})"


@dataclass(frozen=True)
class Link:
    """Describe the connection of two devices.

    Attributes:
        first: One device: "GPU0" and so on by `Gpu.index`, or a network card.
        num_nvlinks: How many NVLinks are bonded; 0 for other kinds.
    """

    first: str
    second: str
    kind: LinkKind
    num_nvlinks: int = 0

    @property
    def label(self) -> str:
        """The kind as `nvidia-smi` prints it: NV18, PIX."""
        return f"{self.kind}{self.num_nvlinks}" if self.kind is LinkKind.NVLINK else str(self.kind)


@dataclass(frozen=True)
class Node:
    """Describe one NUMA node; `memory_bytes` is 0 where it is not known."""

    number: int
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True)
class Topology:
    """Describe the parts of the computer, and what connects them. `nics` names the network cards, as "mlx5_0"."""

    nodes: tuple[Node, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()

    def link(self, first: str, second: str) -> Link | None:
        """Return the connection of two devices, in either order; None where it is not known."""
        return next((link for link in self.links if {link.first, link.second} == {first, second}), None)

    @property
    def summary(self) -> str:
        """Summarise the links: "28 pairs of GPUs by NV18; GPUs and network cards: 16 PIX, 48 SYS"."""
        among, across = Counter[str](), Counter[str]()
        gpus = {f"GPU{gpu.index}" for gpu in self.gpus}
        for link in self.links:
            ends = {link.first, link.second} & gpus
            if ends:
                (among if len(ends) == 2 else across)[link.label] += 1
        parts = [f"{n} pair{'s' if n > 1 else ''} of GPUs by {label}" for label, n in among.most_common()]
        if across:
            parts.append("GPUs and network cards: " + ", ".join(f"{n} {label}" for label, n in across.most_common()))
        return "; ".join(parts)


def find_topology() -> Topology:
    """Find out what this computer is made of. Nothing is measured; what cannot be read is left out."""
    of_driver = _nvml_gpus() or parse_query(_nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
    by_uuid = {gpu.uuid: gpu for gpu in of_driver if gpu.uuid}
    known = [(gpu, by_uuid.get(gpu.uuid)) for gpu in torch_gpus() or of_driver]
    gpus = tuple(replace(gpu, pci=same.pci, numa_node=same.numa_node) if same else gpu for gpu, same in known)
    found = Topology(nodes=numa_nodes(), gpus=gpus)
    text = _nvidia_smi("topo", "-m") if gpus else ""
    if not text:
        return found
    try:
        matrix = parse_matrix(text)
    except MachineError as error:
        _LOG.warning("%s; the links between GPUs are not known", error)
        return found
    return _joined(found, matrix, {gpu.index: same.index for gpu, same in known if same is not None})


def torch_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that torch can use. This starts CUDA in the process."""
    if not torch.cuda.is_available():
        return ()
    seen = [(index, torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())]
    return tuple(
        Gpu(
            index=index,
            name=found.name,
            capability=(found.major, found.minor),
            memory_bytes=int(found.total_memory),
            uuid=f"GPU-{found.uuid}" if hasattr(found, "uuid") else "",  # ROCm may have none
        )
        for index, found in seen
    )


def numa_nodes(directory: Path = NODES) -> tuple[Node, ...]:
    """Return the NUMA nodes that the system lists; one that holds all cores and all memory where it lists none."""
    nodes = []
    for number, cpus in numa_cores(directory):
        memory = re.search(r"MemTotal:\s*(\d+) kB", _read(directory / f"node{number}" / "meminfo"))
        nodes.append(Node(number, cpus, int(memory.group(1)) * 1024 if memory else 0))
    return tuple(nodes) or (Node(0, tuple(range(os.cpu_count() or 1)), psutil.virtual_memory().total),)


def pci_node(pci: str, directory: Path = _PCI) -> int | None:
    """Return the NUMA node of a PCI device; None where the system does not say, as in most virtual machines."""
    text = _read(directory / pci / "numa_node").strip() if pci else ""
    return int(text) if text.isdecimal() else None


def parse_matrix(text: str) -> Topology:
    """Read what `nvidia-smi topo -m` prints.

    Args:
        text: Its output. Columns are separated by tabs, or by two blanks and more where somebody copied it from a
            terminal. Columns of NUMA nodes and the legend may be missing, as older drivers print none.

    Returns:
        GPUs with the driver's numbers, network cards, links, and the NUMA nodes with the cores that the GPUs are near.

    Raises:
        MachineError: There is no matrix in it, or one that is cut off.
    """
    rows = [_cells(line) for line in _STYLING.sub("", text).splitlines()]
    start = next((i for i, cells in enumerate(rows) if "GPU0" in [*cells, ""][:2] and "X" not in cells), None)
    if start is None:
        raise MachineError("the output of nvidia-smi topo -m holds no matrix of GPUs; give all that it prints")
    names = [cell for cell in rows[start] if cell and cell not in _AFFINITIES]
    found = {cells[0]: cells[1:] for cells in rows[start + 1 :] if cells[0] in names}
    whole = [cells[: len(names)] for cells in found.values()]
    if list(found) != names or not all(len(row) == len(names) and all(map(_CELL.fullmatch, row)) for row in whole):
        raise MachineError("the matrix of nvidia-smi topo -m is cut off; give all that it prints")
    cards = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)\s*$", text, re.MULTILINE))
    links = []
    for i, first in enumerate(names):
        for second, cell in zip(names[:i], found[first], strict=False):
            links += _link(cards.get(second, second), cards.get(first, first), cell)
    gpus, nodes = [], dict[int, Node]()
    for name in names:
        if name.startswith("GPU"):
            cpus, number = [*found[name][len(names) :], "", ""][:2]
            node = int(number) if number.isdecimal() else None
            gpus.append(Gpu(index=int(name.removeprefix("GPU")), numa_node=node))
            if node is not None:
                nodes[node] = Node(node, core_numbers(cpus))
    nics = tuple(cards.get(name, name) for name in names if not name.startswith("GPU"))
    return Topology(tuple(nodes[number] for number in sorted(nodes)), tuple(gpus), nics, tuple(links))


def parse_query(text: str) -> tuple[Gpu, ...]:
    """Read the CSV of `nvidia-smi --query-gpu`: every GPU of the driver, hidden ones too. Other lines are skipped."""
    gpus = []
    for line in text.splitlines():
        row = re.fullmatch(r"(\d+), (GPU-[\w-]+), ([\dA-Fa-f:.]+), (.+), (\d+|\[N/A\]), (\d+)\.(\d+)", line.strip())
        if row is not None:
            index, uuid, bus, name, mebibytes, major, minor = row.groups()
            memory = int(mebibytes) * 2**20 if mebibytes.isdecimal() else 0  # those that share the host's have none
            pci = _pci(bus)
            gpus.append(Gpu(int(index), name, (int(major), int(minor)), memory, uuid, pci, pci_node(pci)))
    return tuple(gpus)


def _cells(line: str) -> list[str]:
    """Return the cells of a line, at least one. Virtual machines leave cells empty, which only tabs can show."""
    return [part.strip() for part in (line.split("\t") if "\t" in line else re.split(r"\s{2,}", line))]


def _link(first: str, second: str, cell: str) -> list[Link]:
    """Return one link, or none for a kind of connection that this version does not know."""
    bonded = re.fullmatch(r"NV(\d+)", cell)
    if bonded:
        return [Link(first, second, LinkKind.NVLINK, int(bonded.group(1)))]
    return [Link(first, second, LinkKind(cell))] if cell in set(LinkKind) - {LinkKind.NVLINK} else []


def _joined(found: Topology, matrix: Topology, numbers: Mapping[int, int]) -> Topology:
    """Add the matrix's links to the GPUs that were found.

    The matrix uses the driver's numbers, and contains GPUs that are hidden from torch. `numbers` holds the driver's
    number by `Gpu.index`, for the GPUs that both know.
    """
    names = {f"GPU{number}": f"GPU{index}" for index, number in numbers.items()} | {nic: nic for nic in matrix.nics}
    nodes = {gpu.index: gpu.numa_node for gpu in matrix.gpus}
    gpus = tuple(
        gpu if gpu.numa_node is not None else replace(gpu, numa_node=nodes.get(numbers.get(gpu.index, -1)))
        for gpu in found.gpus
    )
    links = tuple(
        replace(link, first=names[link.first], second=names[link.second])
        for link in matrix.links
        if link.first in names and link.second in names
    )
    return replace(found, gpus=gpus, nics=matrix.nics, links=links)


def _nvml_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the driver, including hidden ones; none without nvidia-ml-py."""
    with nvml() as library:
        if library is None:
            return ()
        gpus = []
        try:
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
                memory = int(library.nvmlDeviceGetMemoryInfo(handle).total)
                pci = _pci(_text(library.nvmlDeviceGetPciInfo(handle).busId))
                name, uuid = _text(library.nvmlDeviceGetName(handle)), _text(library.nvmlDeviceGetUUID(handle))
                gpus.append(Gpu(index, name, (major, minor), memory, uuid, pci, pci_node(pci)))
        except library.NVMLError:
            return ()
        return tuple(gpus)


def _pci(bus: str) -> str:
    """An address as /sys has it: "0000:1b:00.0" for the driver's "00000000:1B:00.0"."""
    domain, _, place = bus.lower().partition(":")
    return f"{domain[-4:]}:{place}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _nvidia_smi(*arguments: str) -> str:
    """Return what the program prints; "" where it cannot be run."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, *arguments]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            timeout=_SMI_LIMIT_S,
            check=True,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
