"""What `nvidia-smi topo -m` prints, in the layouts of several drivers and machines."""

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

SINGLE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n" + LEGEND

VIRTUAL = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t\t\tN/A\n" + LEGEND

_DGX_NICS = {0: "PXB\tPXB\tSYS\tSYS", 1: "SYS\tSYS\tPXB\tPXB"}

DGX = (
    "\t\x1b[4m" + "\t".join(f"GPU{i}" for i in range(8))
    + "\tNIC0\tNIC1\tNIC2\tNIC3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    + "".join(
        f"GPU{i}\t"
        + "\t".join(" X " if j == i else "NV18" for j in range(8))
        + f"\t{_DGX_NICS[i // 4]}\t{'0-47,96-143' if i < 4 else '48-95,144-191'}\t{i // 4}\t\tN/A\n"
        for i in range(8)
    )
    + "NIC0" + "\tPXB" * 4 + "\tSYS" * 4 + "\t X \tPIX\tSYS\tSYS\n"
    + "NIC1" + "\tPXB" * 4 + "\tSYS" * 4 + "\tPIX\t X \tSYS\tSYS\n"
    + "NIC2" + "\tSYS" * 4 + "\tPXB" * 4 + "\tSYS\tSYS\t X \tPIX\n"
    + "NIC3" + "\tSYS" * 4 + "\tPXB" * 4 + "\tSYS\tSYS\tPIX\t X \n"
    + LEGEND
    + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_4\n  NIC3: mlx5_5\n"
)  # fmt: skip

# A driver before 525: network cards by name, no column of GPU NUMA IDs.
MIXED = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tPHB\tSYS\tPIX\t0-23\t0\n"
    "GPU1\tNV4\t X \tNODE\tSYS\tPXB\t0-23\t0\n"
    "GPU2\tPHB\tNODE\t X \tSYS\tNODE\t0-23\t0\n"
    "GPU3\tSYS\tSYS\tSYS\t X \tSYS\t24,26-47\t1\n"
    "mlx5_0\tPIX\tPXB\tNODE\tSYS\t X \n" + LEGEND
)

# As a terminal shows it, copied by hand: blanks in place of tabs.
COPIED = """
        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PIX     0-47            0               N/A
GPU1    PIX      X      0-47            0               N/A
"""
