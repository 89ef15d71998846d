"""Describe this computer: chip, instruction sets, cores, memory, GPU, torch, threads, and a fingerprint of them."""

import hashlib
import json
import platform
import sys
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import psutil
import torch

from whet.measure.cgroup import cpu_quota, memory_limit
from whet.measure.cores import allowed_cores
from whet.measure.machine.cpuinfo import chip, instruction_sets, read_cpuinfo
from whet.measure.machine.nvidia import driver_version
from whet.measure.machine.topology import Gpu, torch_gpus

BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "arm_bf16"})
"""Instruction sets that multiply bfloat16 natively. Without one of them it is emulated."""

FLOAT16 = frozenset({"avx512_fp16", "amx_fp16"})
"""Instruction sets that multiply float16 natively."""

_AMPERE = (8, 0)  # compute capability of the first CUDA chips with bfloat16 in hardware


@dataclass(frozen=True)
class Machine:
    """Describe this computer.

    Attributes:
        isa: The instruction sets that decide which kernels run.
        cores: Cores that this process may use, by its affinity and its container.
        memory_bytes: Memory that this process may use.
        gpu: The label of the current GPU, or "" for none.
        torch_threads: PyTorch's intra-op threads when the machine was first described.
        gpus: All GPUs that torch can use, the current one first.
    """

    chip: str
    isa: tuple[str, ...]
    cores: int
    memory_bytes: int
    gpu: str
    gpu_driver: str
    system: str
    python: str
    torch: str
    torch_threads: int
    gpus: tuple[Gpu, ...] = ()

    def computes_bfloat16(self, device_type: str = "cpu") -> bool:
        """Return whether a device of this kind computes bfloat16 natively."""
        if device_type != "cuda":
            return not BFLOAT16.isdisjoint(self.isa)
        return bool(self.gpus) and (self.gpus[0].capability or (0, 0)) >= _AMPERE

    def computes_float16(self, device_type: str = "cpu") -> bool:
        """Return whether a device of this kind multiplies float16 natively, as every GPU does."""
        return bool(self.gpus) if device_type == "cuda" else not FLOAT16.isdisjoint(self.isa)

    def facts(self) -> dict[str, Any]:
        """Return the facts as files hold them, by name. The GPUs are in them as `gpu`."""
        facts = asdict(self)
        facts.pop("gpus")
        return facts

    @property
    def fingerprint(self) -> str:
        """Return twelve hex digits, equal for machines with comparable figures. Python's version does not count."""
        facts = self.facts()
        facts.pop("python")
        facts["memory_bytes"] = round(self.memory_bytes / 2**30)  # a kernel update moves it by a few MB
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Return in words how another machine's facts differ from this machine's."""
        lines = []
        for name, value in _plain(self.facts()).items():
            theirs = _plain(other).get(name)
            if name == "memory_bytes" and isinstance(theirs, int):
                same = round(value / 2**30) == round(theirs / 2**30)
            else:
                same = value == theirs
            if not same and name != "python":
                lines.append(f"{name.replace('_', ' ')}: {theirs} there, {value} here")
        return lines

    @property
    def most_bytes(self) -> int:
        """Return the bytes that a measured process may take. Beyond them the system might end other processes."""
        return int(0.95 * self.memory_bytes)

    @property
    def has_cuda(self) -> bool:
        """Return whether torch can use a GPU."""
        return bool(self.gpu)


@cache
def describe() -> Machine:
    """Describe the machine this process runs on. Read once: threads set later do not change the fingerprint."""
    text = read_cpuinfo()
    gpus = _gpus()
    return Machine(
        chip=chip(text) or platform.processor() or platform.machine(),
        isa=instruction_sets(text),
        cores=min(len(allowed_cores()), cpu_quota() or sys.maxsize),
        memory_bytes=min(psutil.virtual_memory().total, memory_limit() or sys.maxsize),
        gpu=gpus[0].label if gpus else "",
        gpu_driver=_gpu_driver() if gpus else "",
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        torch_threads=torch.get_num_threads(),
        gpus=gpus,
    )


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as they are read back from a file, with lists in place of tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


def _gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that torch can use, the current one first."""
    gpus = torch_gpus()
    current = torch.cuda.current_device() if gpus else 0
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index != current, gpu.index)))


def _gpu_driver() -> str:
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
    driver = driver_version()
    return f"{driver}, {runtime}" if driver else runtime
