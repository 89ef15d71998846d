"""The description of this machine, and its fingerprint."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.machine import Gpu, Machine, describe, description
from whet.measure.machine.audit_facts import machine_facts
from whet.measure.machine.nvidia import driver_version
from whet_audit.report import MachineFacts

MACHINE = Machine(
    chip="A chip",
    isa=("avx2",),
    cores=4,
    memory_bytes=16 * 2**30,
    gpu="",
    gpu_driver="",
    system="Linux x86_64",
    python="3.12.1",
    torch="2.13.0",
    torch_threads=4,
)


def test_describes_this_machine() -> None:
    machine = describe()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.cores <= len(os.sched_getaffinity(0))
    assert 0 < machine.memory_bytes <= psutil.virtual_memory().total
    assert machine.torch == torch.__version__
    assert machine.chip
    assert machine.has_cuda == torch.cuda.is_available()
    assert describe() is machine  # read once


def test_a_container_bounds_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "cpu_quota", lambda: 1)
    monkeypatch.setattr(description, "memory_limit", lambda: 2**29)
    machine = describe.__wrapped__()  # past the cache
    assert machine.cores == 1
    assert machine.memory_bytes == 2**29


def test_fingerprint_changes_with_what_moves_figures_only() -> None:
    same = [{"python": "3.11.7"}, {"memory_bytes": MACHINE.memory_bytes - 5 * 2**20}]
    other = [
        {"chip": "B"},
        {"isa": ()},
        {"cores": 2},
        {"torch": "2.14.0"},
        {"torch_threads": 1},
        {"memory_bytes": 2**30},
    ]
    assert all(replace(MACHINE, **change).fingerprint == MACHINE.fingerprint for change in same)
    assert len({replace(MACHINE, **change).fingerprint for change in other} | {MACHINE.fingerprint}) == 1 + len(other)
    assert len(MACHINE.fingerprint) == 12


@given(st.sampled_from(["chip", "cores", "gpu", "torch", "torch_threads", "system"]), st.integers(5, 99))
def test_differences_name_what_differs(field: str, value: int) -> None:
    there = asdict(MACHINE) | {field: value if isinstance(getattr(MACHINE, field), int) else f"other {value}"}
    (line,) = MACHINE.differences(there)
    assert line.startswith(field.replace("_", " "))
    assert str(value) in line


def test_the_list_of_gpus_changes_no_fingerprint() -> None:
    with_gpus = replace(MACHINE, gpus=(Gpu(0, "H100", (9, 0)),))
    assert with_gpus.facts() == MACHINE.facts()
    assert with_gpus.fingerprint == MACHINE.fingerprint == "14bdf16319fb"  # as records of earlier versions hold it
    assert with_gpus.computes_bfloat16("cuda") and not MACHINE.computes_bfloat16("cuda")
    assert not replace(MACHINE, gpus=(Gpu(0, "T4", (7, 5)),)).computes_bfloat16("cuda")


def test_the_current_gpu_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (Gpu(0, "A100", (8, 0), 40), Gpu(1, "H100", (9, 0), 80), Gpu(2, "A100", (8, 0), 40))
    monkeypatch.setattr(description, "torch_gpus", lambda: gpus)
    monkeypatch.setattr(description, "driver_version", lambda: "550.54.15")
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    machine = describe.__wrapped__()
    assert [gpu.index for gpu in machine.gpus] == [1, 0, 2]
    assert (machine.gpu, machine.has_cuda) == ("H100 (sm_90)", True)
    assert machine.gpu_driver.startswith("550.54.15, ")
    monkeypatch.setattr("whet.measure.machine.audit_facts.describe", lambda: machine)
    assert machine_facts() == MachineFacts(machine.cores, machine.memory_bytes, "A100", 40, 3)


def test_no_differences_from_itself() -> None:
    assert MACHINE.differences(MACHINE.facts()) == []
    assert MACHINE.differences({**asdict(MACHINE), "isa": ["avx2"], "python": "3.13.0"}) == []


def test_driver_from_the_kernel_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.measure.machine.nvidia._from_nvml", lambda: "")
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    assert driver_version(path) == "550.54.15"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n")
    assert driver_version(path) == "570.86.10"
    assert driver_version(tmp_path / "none") == ""
