"""Measure the machine's limits: how fast it reads memory and multiplies matrices at best."""

import math
import platform
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import psutil
import torch

from whet.errors import MachineError
from whet.measure.load import MAX_WAITED_LONG, Observed
from whet.measure.machine import gemm
from whet.measure.machine.bandwidth import non_increasing, read_bandwidth
from whet.measure.machine.cache import cache_dir
from whet.measure.machine.cuda import cuda_bandwidth
from whet.measure.machine.description import Machine
from whet.measure.machine.record_file import Record, keep_record, read_record
from whet.ui.notebook import Shown

_WHAT = "the machine's limits"

# Element sizes in bytes: what a dtype that was not measured could gain over float32 at the most.
_BYTES = {
    "float64": 8, "float32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1, "int4": 0.5,
}  # fmt: skip
_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
_INT8_OVER_FLOAT32 = 2.0  # AVX2: vpmaddubsw and vpmaddwd multiply 32 pairs in two instructions, an FMA 8 in one

_PROBE = (1024, 1024, 1024)  # one of the shapes by which limits are measured, so no product of it should be faster
_PROBE_S = 0.03
_MAX_OF_RECORD = 1.15  # times a record that a probe may reach
_MIN_OF_RECORD = 0.25  # of a record that a probe on a quiet machine reaches at least: it takes no time to find its best
_QUIET_CHECK_S = 0.25  # of watching whether the machine is quiet again


def element_bytes(dtype: str) -> float:
    """Return the bytes of an element of a dtype, by its name in torch ("bfloat16"); 4 for an unknown dtype."""
    return _BYTES.get(dtype, 4)


@dataclass(frozen=True)
class Limits(Shown):
    """Hold the best that was measured on a device of this machine.

    Attributes:
        read_bandwidth: Bytes/s of all cores, for a working set far larger than the caches.
        gemm: Operations/s (2mnk) of dense products by dtype ("float32", "bfloat16", "float16", "int8"). A dtype that
            the machine cannot multiply is absent.
        device: The device, as torch names it.
        cached_bandwidth: Pairs of working set in bytes and bytes/s, smallest first, for sets that are read repeatedly.
        operator_s: Seconds that a call of the smallest operator takes.
        notes: Reasons to trust a figure less.
        busy: What disturbed the measurement; "" for a quiet machine. Disturbed figures may be too low. They are
            measured again on a quiet machine.
    """

    read_bandwidth: float
    gemm: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    cached_bandwidth: tuple[tuple[int, float], ...] = ()
    operator_s: float = 1e-6
    notes: tuple[str, ...] = ()
    busy: str = ""

    def __post_init__(self) -> None:
        rates = [self.read_bandwidth, self.operator_s, *self.gemm.values(), *(b for _, b in self.cached_bandwidth)]
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ValueError("limits must be positive and finite")

    def bandwidth(self, working_set_bytes: float) -> float:
        """Return the bytes/s for a working set of this size that is read again and again, from a cache if it fits.

        Between two measured sizes the smaller size's figure counts, so that no model can be faster than the limit.
        """
        place = bisect_right([size for size, _ in self.cached_bandwidth], working_set_bytes)
        if not self.cached_bandwidth or working_set_bytes > 2 * self.cached_bandwidth[-1][0]:
            return self.read_bandwidth
        return max(self.read_bandwidth, self.cached_bandwidth[max(0, place - 1)][1])

    def peak(self, dtype: str) -> float:
        """Return the operations/s in a dtype.

        A dtype that was not measured gets an upper bound: float32's figure, scaled by the size of the elements. On an
        x86 processor, int8 gets twice float32's figure at least, which its instructions allow: without VNNI, torch's
        own products, which are what is measured, are slower than those of other runtimes.
        """
        if dtype in self.gemm:
            is_int8_on_x86 = dtype == "int8" and self.device == "cpu" and _IS_X86
            least = _INT8_OVER_FLOAT32 * self.gemm.get("float32", 0.0) if is_int8_on_x86 else 0.0
            return max(self.gemm[dtype], least)
        if not self.gemm:
            return float("inf")
        reference = self.gemm.get("float32", max(self.gemm.values()))
        return max(reference, reference * _BYTES["float32"] / element_bytes(dtype))

    def faster(self, dtype: str) -> str:
        """Return the dtype, or float32 where that has the higher peak, as on chips that emulate bfloat16.

        Values that are stored in a smaller dtype may be multiplied in either.
        """
        is_fast = dtype in self.gemm and self.peak(dtype) >= self.gemm.get("float32", 0.0)
        return dtype if is_fast else "float32"

    def best_of(self, other: "Limits") -> "Limits":
        """Combine two measurements of one device: the better figures, and the notes that both have."""
        dtypes = [*self.gemm, *(dtype for dtype in other.gemm if dtype not in self.gemm)]
        cached = {
            size: max(dict(m.cached_bandwidth).get(size, 0.0) for m in (self, other))
            for size, _ in self.cached_bandwidth
        }
        return Limits(
            read_bandwidth=max(self.read_bandwidth, other.read_bandwidth),
            gemm={dtype: max(m.gemm.get(dtype, 0.0) for m in (self, other)) for dtype in dtypes},
            device=self.device,
            cached_bandwidth=non_increasing(list(cached.items())),
            operator_s=min(self.operator_s, other.operator_s),
            notes=self.notes if other.notes else (),
            busy=self.busy if other.busy else "",
        )


class _Record(Record):
    """Define the cached file."""

    # 3 knew int8 products through torch._int_mm alone; 2 kept what a busy machine had disturbed; 1 knew float32
    # products through MKL alone
    format: Literal[4] = 4
    limits: Limits


def known_limits(machine: Machine, device: str = "cpu") -> Limits | None:
    """Return the limits of this machine that are in the cache; None where they have not been measured."""
    return _read(_path(machine, device), machine)


def load_limits(machine: Machine, *, refresh: bool = False, device: str = "cpu") -> Limits:
    """Return the limits of this machine. They are measured once for each fingerprint, then read from the cache.

    They are measured again if the file is damaged, if other processes disturbed the measurement and the machine is
    quiet now, or if a quick probe contradicts the record.

    Args:
        refresh: Whether to measure again. The best of all measurements counts, since load can only lower a figure.

    Raises:
        MachineError: The device cannot be measured.
    """
    path = _path(machine, device)
    known = _read(path, machine)
    is_wrong = known is not None and _is_too_high(known, machine)
    if known is not None and not (refresh or is_wrong or _is_too_low(known, machine)):
        return known
    limits = measure_limits(machine, device=device)
    if known is not None and not is_wrong:
        limits = limits.best_of(known)
    keep_record(path, _Record(fingerprint=machine.fingerprint, limits=limits), _WHAT)
    return limits


def measure_limits(
    machine: Machine,
    *,
    device: str = "cpu",
    buffer_bytes: int | None = None,
    shapes: tuple[tuple[int, int, int], ...] | None = None,
    budget_s: float = 1.2,
) -> Limits:
    """Measure them, in about ten seconds. Smaller buffers, shapes (M, N, K) or budgets are for tests.

    Uses all cores that this process may use, whatever torch's thread setting, and puts that back.
    """
    if device == "cuda":
        return _measure_cuda(machine, shapes or gemm.CUDA_SHAPES, budget_s)
    if device != "cpu":
        raise MachineError(f"limits of device {device!r} cannot be measured; give 'cpu' or 'cuda'")
    with Observed() as reading:
        bandwidth = read_bandwidth(machine.cores, buffer_bytes=buffer_bytes)
    with _all_cores(machine), Observed() as multiplying:
        peaks = gemm.gemm_peaks(gemm.DTYPES, shapes or gemm.SHAPES, budget_s=budget_s)
    busy = reading.load.cause_beyond(MAX_WAITED_LONG) or multiplying.load.cause_beyond(MAX_WAITED_LONG)
    notes = bandwidth.notes
    if busy:
        notes += (f"{busy} meanwhile, so these may be too low; whet measures again on a quiet machine",)
    return Limits(bandwidth.memory, peaks, "cpu", bandwidth.cached, _operator_s("cpu"), notes, busy)


@contextmanager
def _all_cores(machine: Machine) -> Iterator[None]:
    """Have torch use all cores; two threads on one physical core would share its multipliers."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(machine.cores, psutil.cpu_count(logical=False) or machine.cores)))
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@cache
def _probe(machine: Machine) -> tuple[float, bool]:
    """Return the operations/s that float32 products reach in a few milliseconds, and whether the machine was quiet."""
    with _all_cores(machine), Observed() as seen:
        peaks = gemm.gemm_peaks(("float32",), (_PROBE,), budget_s=_PROBE_S)
    return peaks.get("float32", 0.0), seen.load.is_quiet


def _is_too_low(known: Limits, machine: Machine) -> bool:
    """Tell whether a record shows less than the machine can do, as it was measured under load."""
    if known.device != "cpu":
        return False
    if known.busy:
        with Observed() as seen:
            time.sleep(_QUIET_CHECK_S)
        if seen.load.is_quiet:
            return True
    return _probe(machine)[0] > _MAX_OF_RECORD * known.gemm.get("float32", math.inf)


def _is_too_high(known: Limits, machine: Machine) -> bool:
    """Tell whether a record is of a faster machine than this one, which calls itself the same."""
    if known.device != "cpu":
        return False
    reached, is_quiet = _probe(machine)
    return is_quiet and reached < _MIN_OF_RECORD * known.gemm.get("float32", 0.0)


def _measure_cuda(machine: Machine, shapes: tuple[tuple[int, int, int], ...], budget_s: float) -> Limits:
    if not machine.has_cuda:
        raise MachineError(
            "this machine has no CUDA device that torch can use; measure 'cpu', or install torch for CUDA"
        )
    try:
        memory, cached = cuda_bandwidth()
        peaks = gemm.gemm_peaks(gemm.CUDA_DTYPES, shapes, device="cuda", budget_s=budget_s)
    finally:
        torch.cuda.empty_cache()  # what was held for the measurement is other processes' again
    return Limits(memory, peaks, "cuda", cached, _operator_s("cuda"))


def _operator_s(device: str, num_calls: int = 200) -> float:
    """Return the seconds of one operator on one number: its dispatch and, on CUDA, its launch."""
    x = torch.ones(1, device=device)

    def run() -> None:
        for _ in range(num_calls):
            torch.add(x, x)
        if device == "cuda":
            torch.cuda.synchronize()

    with torch.no_grad():
        return gemm.best_s(run, "cpu", 0.05) / num_calls


def _path(machine: Machine, device: str) -> Path:
    return cache_dir() / f"limits-{machine.fingerprint}-{device}.json"


def _read(path: Path, machine: Machine) -> Limits | None:
    record = read_record(path, _Record, machine.fingerprint, _WHAT)
    return None if record is None else record.limits
