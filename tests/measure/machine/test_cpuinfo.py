"""What is read from /proc/cpuinfo, on texts as real machines show them and on generated ones."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.machine.cpuinfo import chip, instruction_sets, read_cpuinfo

INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480+
stepping\t: 8
cpu MHz\t\t: 2000.000
flags\t\t: fpu sse4_2 avx avx2 avx512f avx512bw avx512_bf16 avx512_vnni avx512_fp16 amx_bf16 amx_tile amx_int8
vmx flags\t: vnmi preemption_timer bf16 sve

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu
"""
AMD = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9654 96-Core Processor
stepping\t: 1
flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni
"""
HIDDEN = "cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Intel Xeon Processor (Skylake)\nstepping\t: \nflags\t\t: avx2\n"
ARM_SERVER = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes asimdhp cpuid asimdrdm asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
ARM_MIXED = "".join(
    f"processor\t: {i}\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
    for i, part in enumerate(["0xd05", "0xd05", "0xd0a"])
)


@pytest.mark.parametrize(
    ("text", "name", "isa"),
    [
        (
            INTEL,
            "Intel(R) Xeon(R) Platinum 8480+ (6/143/8)",
            ("avx2", "avx512", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx", "amx_bf16", "amx_int8"),
        ),
        (AMD, "AMD EPYC 9654 96-Core Processor (25/17/1)", ("avx2", "avx512", "avx512_vnni", "avx512_bf16")),
        (HIDDEN, "Intel Xeon Processor (Skylake) (6/85)", ("avx2",)),
        (ARM_SERVER, "ARM 0x41/0xd40", ("neon", "arm_dotprod", "arm_fp16", "sve", "arm_bf16", "arm_i8mm")),
        (ARM_MIXED, "ARM 0x41/0xd05 + 0x41/0xd0a", ("neon",)),
        ("", "", ()),
        ("processor\t: 0\nmodel name\t:\nflags\t\t:\nbugs\t\t: avx2\n", "", ()),
    ],
)
def test_reads_real_texts(text: str, name: str, isa: tuple[str, ...]) -> None:
    assert chip(text) == name
    assert instruction_sets(text) == isa


def test_no_file_is_an_empty_text(tmp_path: Path) -> None:
    assert read_cpuinfo(tmp_path / "cpuinfo") == ""


words = st.text(string.ascii_letters + string.digits + "()-+@.", min_size=1, max_size=12)
lines = st.tuples(st.sampled_from(["bugs", "vmx flags", "power management", "model", "microcode"]), words)


@given(
    name=st.lists(words, min_size=1, max_size=5).map(" ".join),
    flags=st.lists(st.sampled_from(["fpu", "avx2", "avx512f", "amx_tile", "avx512_bf16", "unheard_of"]), unique=True),
    before=st.lists(lines, max_size=4),
    after=st.lists(lines, max_size=4),
    cores=st.integers(1, 4),
    space=st.sampled_from(["\t: ", ": ", "\t\t: ", " : "]),
)
def test_name_and_flags_are_found_whatever_stands_around(
    name: str, flags: list[str], before: list[tuple[str, str]], after: list[tuple[str, str]], cores: int, space: str
) -> None:
    entries = [*before, ("model name", name), ("flags", " ".join(flags)), *after]
    text = "\n".join(f"{key}{space}{value}" for _ in range(cores) for key, value in entries) + "\n"
    assert chip(text).startswith(name)
    known = {"avx2": "avx2", "avx512f": "avx512", "amx_tile": "amx", "avx512_bf16": "avx512_bf16"}
    assert set(instruction_sets(text)) == {known[flag] for flag in flags if flag in known}


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(chip(text), str)
    assert isinstance(instruction_sets(text), tuple)
