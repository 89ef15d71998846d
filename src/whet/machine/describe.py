"""What this computer is: chip, instruction sets, cores, memory, GPU, torch, threads, and a fingerprint of them."""

import hashlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

# Instruction sets that decide which kernels run; the rest of the flags say nothing about speed.
_ISA = (
    ("avx2", "avx2"),
    ("avx512f", "avx512"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx_vnni", "avx_vnni"),
    ("avx512_bf16", "avx512_bf16"),
    ("avx512_fp16", "avx512_fp16"),
    ("amx_tile", "amx"),
    ("amx_bf16", "amx_bf16"),
    ("amx_int8", "amx_int8"),
    ("amx_fp16", "amx_fp16"),
    ("asimd", "neon"),
    ("sve", "sve"),
    ("bf16", "arm_bf16"),
    ("i8mm", "arm_i8mm"),
)


@dataclass(frozen=True)
class Machine:
    """What this computer is.

    isa: the instruction sets that decide which kernels run. cores: that this process may use. gpu: name, or "" for
    none. torch_threads: intra-op threads in force.
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

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits, the same for machines on which figures can be compared. Leaves out Python's version."""
        facts = asdict(self)
        facts.pop("python")
        facts["memory_bytes"] = round(self.memory_bytes / 2**30)  # a kernel update moves it by a few MB
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: dict[str, Any]) -> list[str]:
        """In words, where another machine's facts differ from these."""
        mine = json.loads(json.dumps(asdict(self)))
        lines = []
        for name, value in mine.items():
            theirs = other.get(name)
            if name == "memory_bytes" and isinstance(theirs, int):
                same = round(value / 2**30) == round(theirs / 2**30)
            else:
                same = value == theirs
            if not same and name != "python":
                lines.append(f"{name.replace('_', ' ')}: {theirs} there, {value} here")
        return lines

    @property
    def has_cuda(self) -> bool:
        return bool(self.gpu)


@cache
def describe() -> Machine:
    """Describe the machine this process runs on."""
    flags = _cpu_flags()
    gpu, driver = _gpu()
    return Machine(
        chip=_chip(),
        isa=tuple(name for flag, name in _ISA if flag in flags),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu,
        gpu_driver=driver,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        torch_threads=torch.get_num_threads(),
    )


def _cpu_flags() -> frozenset[str]:
    text = _cpuinfo()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def _chip() -> str:
    text = _cpuinfo()
    names = {key: found.group(1).strip() for key in _CHIP_KEYS if (found := re.search(rf"^{key}\s*:\s*(.*)$", text, re.M))}
    if "model name" not in names:
        return platform.processor() or platform.machine()
    # Virtual machines often hide the name: family, model and stepping still tell the chip.
    numbers = "/".join(names[key] for key in ("cpu family", "model", "stepping") if key in names)
    return f"{names['model name']} ({numbers})" if numbers else names["model name"]


_CHIP_KEYS = ("model name", "cpu family", "model", "stepping")


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _gpu() -> tuple[str, str]:
    if not torch.cuda.is_available():
        return "", ""
    major, minor = torch.cuda.get_device_capability()
    driver = str(torch.version.cuda or torch.version.hip or "")
    return f"{torch.cuda.get_device_name()} (sm_{major}{minor})", driver
