"""Read the processor's name and the instruction sets that decide which kernels run from /proc/cpuinfo."""

import re
from pathlib import Path

# Linux's flag -> the name used in reports. The rest of the flags say nothing about speed here.
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
    ("asimddp", "arm_dotprod"),
    ("asimdhp", "arm_fp16"),
    ("sve", "sve"),
    ("sve2", "sve2"),
    ("bf16", "arm_bf16"),
    ("i8mm", "arm_i8mm"),
)


def read_cpuinfo(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the text of /proc/cpuinfo, or "" where the system has none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def instruction_sets(text: str) -> tuple[str, ...]:
    """Return the instruction sets of the first core, in a fixed order."""
    flags = frozenset((_values(text, "flags") or _values(text, "Features") or ("",))[0].split())
    return tuple(name for flag, name in _ISA if flag in flags)


def chip(text: str) -> str:
    """Return the processor's name with its numbers, or "" where the text holds neither.

    Virtual machines often hide the name ("Intel(R) Xeon(R) Processor"). Family, model and stepping still tell chips
    apart. ARM gives numbers only: implementer/part, for each kind of core.
    """
    name = (_values(text, "model name") or ("",))[0]
    numbers = "/".join(values[0] for key in ("cpu family", "model", "stepping") if (values := _values(text, key)))
    parts = zip(_values(text, "CPU implementer"), _values(text, "CPU part"), strict=False)
    arm = " + ".join(dict.fromkeys(f"{implementer}/{part}" for implementer, part in parts))
    inside = numbers or arm
    if not name:
        return f"ARM {arm}" if arm else ""
    return f"{name} ({inside})" if inside else name


def _values(text: str, key: str) -> tuple[str, ...]:
    """Return the values after `key :`, one for each core, without empty ones."""
    found = re.findall(rf"^{re.escape(key)}[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    return tuple(value.strip() for value in found if value.strip())
