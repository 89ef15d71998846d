"""Describe the machine, the compilers, the load, and the places where files go. This file imports torch."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

from whet.core.artefact import inductor
from whet.errors import WhetError, reason
from whet.files import is_writable, size_bytes
from whet.installation.checkup import Compiler, Hardware, MeasuredLimits, Place, State
from whet.kernels import build
from whet.measure.cgroup import cpu_quota, memory_limit
from whet.measure.clocks import power_state
from whet.measure.machine import Machine, find_topology, known_limits
from whet.measure.machine.cache import cache_dir, compiler_directory
from whet.measure.machine.topology import Gpu
from whet.measure.quiet import glance_at_machine

_GLANCE_S = 0.5  # of watching what other processes use


def hardware(machine: Machine) -> Hardware:
    topology = find_topology()
    return Hardware(
        fingerprint=machine.fingerprint,
        chip=machine.chip,
        isa=machine.isa,
        cores=machine.cores,
        all_cores=psutil.cpu_count() or machine.cores,
        torch_threads=machine.torch_threads,
        cpu_quota=cpu_quota(),
        memory_bytes=machine.memory_bytes,
        memory_limit=memory_limit(),
        free_bytes=psutil.virtual_memory().available,
        gpus=tuple(_gpu(gpu) for gpu in topology.gpus),
        torch_uses_gpus=machine.has_cuda,
        gpu_driver=machine.gpu_driver,
        links=topology.summary,
        numa_nodes=len(topology.nodes),
    )


def limits(machine: Machine) -> tuple[MeasuredLimits, ...]:
    """Return the limits that were measured earlier, the GPU's first. Nothing is measured."""
    found = [known_limits(machine, device) for device in (("cuda", "cpu") if machine.has_cuda else ("cpu",))]
    return tuple(
        MeasuredLimits(device=one.device, gemm=one.gemm, read_bandwidth=one.read_bandwidth, busy=one.busy)
        for one in found
        if one is not None
    )


def compilers() -> tuple[Compiler, ...]:
    """Compile a line of C++ as torch.compile does, and as whet's kernels are compiled."""
    command, problem = inductor.try_compiler()
    for_torch = Compiler(purpose="torch.compile", command=command, problem=problem)
    try:
        command, version = build.try_compiler()
    except WhetError as error:
        return for_torch, Compiler(purpose="whet's kernels", problem=str(error))
    return for_torch, Compiler(purpose="whet's kernels", command=command, version=version)


def state() -> State:
    """Watch the machine for half a second, and return what may disturb a measurement now."""
    load, names = glance_at_machine(_GLANCE_S)
    power = power_state()
    busy = f"{load.cause}: {names}" if load.cause and names else load.cause
    return State(
        busy=busy,
        foreign_cores=load.foreign_cores,
        governor=power.governor,
        mhz=power.mhz,
        is_on_battery=power.is_on_battery,
    )


def places() -> tuple[Place, ...]:
    temporary = Path(tempfile.gettempdir())
    # Asking torch for the cache of its inductor takes seconds.
    inductor_cache = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or compiler_directory(temporary))
    return (
        _place("results (whet-out)", Path.cwd(), is_own=False),
        _place("whet's cache", cache_dir(), is_own=True),
        _place("torch.compile's cache", inductor_cache, is_own=True),
        _place("temporary files", temporary, is_own=False),
    )


def _place(purpose: str, directory: Path, *, is_own: bool) -> Place:
    free_bytes = None
    try:
        existing = next(parent for parent in [directory, *directory.parents] if parent.is_dir())
        free_bytes = shutil.disk_usage(existing).free
        used = size_bytes(directory) if is_own and directory.is_dir() else None
    except OSError as error:
        return Place(purpose=purpose, path=f"{directory} ({reason(error)})", is_writable=False)
    return Place(
        purpose=purpose,
        path=str(directory),
        used_bytes=used,
        free_bytes=free_bytes,
        is_writable=is_writable(existing),
    )


def _gpu(gpu: Gpu) -> str:
    memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
    return f"{gpu.index}: {gpu.label}{memory}"
