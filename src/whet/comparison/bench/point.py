"""Time one target at one size, in a process of its own."""

import gc
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from whet.core.signature import split
from whet.core.workload import ExaminedWorkload, examine
from whet.core.workload.measurables import ModelCalls
from whet.errors import InputsError
from whet.measure.clock import Measurement, measure_calls
from whet.measure.machine import EnergyMeter, describe, load_limits
from whet.measure.memory import cuda_peak_bytes, live_tensor_bytes, peak_rss_bytes, reset_peak_rss
from whet.measure.stats import percentile
from whet.profiling.model import least_time_s, profile_layers
from whet.workloads import resolve

MAX_SAMPLES = 2000  # kept in a report; percentiles are of all


def measure_point(
    target: str,
    sizes: Mapping[str, int],
    budget_s: float,
    with_memory: bool,
    with_energy: bool,
    with_limit: bool,
) -> dict[str, Any]:
    """Time a target at one size, warm, for `budget_s` seconds: seconds per call, memory, energy, share of the limit.

    A call that raises after others were timed ends the measurement; what was timed is kept, and `stopped_by` says why.
    """
    examined = first_batch(target, sizes)
    workload = examined.workload
    args, kwargs = split(workload.inputs[0])
    memory = _Memory(with_memory)
    meter = EnergyMeter()
    meter.start()
    began = time.perf_counter()
    measurement = measure_calls(
        [lambda: workload.model(*args, **kwargs)],
        budget_s=budget_s,
        num_samples_per_call=workload.num_samples,
        keeps_partial=True,
    )
    seconds = time.perf_counter() - began
    energy = meter.stop()
    facts = {
        **_figures(measurement),
        **memory.read(),
        "num_samples": workload.num_samples,
        "cause": measurement.cause,
        "load": asdict(measurement.load),
        "stopped_by": measurement.stopped_by,
        "share_of_limit": None,
    }
    if with_limit and not measurement.stopped_by and not measurement.cause:
        facts["share_of_limit"] = _share_of_limit(examined, measurement)
    if with_energy:
        # The counters see warm-up too; power is what they tell, and a call's energy is its time at that power.
        watts = None if energy.total_j is None else energy.total_j / seconds
        facts["watts"] = watts
        facts["energy_j"] = None if watts is None else watts * measurement.latency_ms / 1e3
        facts["energy_reason"] = energy.reason
    return facts


def first_calls(target: str, sizes: Mapping[str, int]) -> ModelCalls:
    """Return calls of a target's model with its first batch, as one side of a comparison."""
    workload = first_batch(target, sizes).workload
    args, kwargs = split(workload.inputs[0])
    return ModelCalls([partial(workload.model, *args, **kwargs)], workload.num_samples)


def first_batch(target: str, sizes: Mapping[str, int]) -> ExaminedWorkload:
    """A target with its first batch alone, after it was seen to work."""
    workload = resolve(target, sizes)
    first = replace(workload, inputs=workload.inputs[:1], calibration=workload.inputs[:1])
    return examine(first, with_quality=False, with_behaviour=False)


def _figures(measurement: Measurement) -> dict[str, Any]:
    samples = measurement.samples_s
    return {
        "latency_ms": measurement.latency_ms,
        "p50_ms": percentile(samples, 50) * 1e3,
        "p90_ms": measurement.p90_ms,
        "p99_ms": measurement.p99_ms,
        "throughput_per_s": measurement.throughput,
        "num_calls": len(samples),
        "samples_ms": [round(s * 1e3, 6) for s in samples[:MAX_SAMPLES]],
    }


class _Memory:
    """The peak from the moment it is made: what building the model took on the way is not serving's.

    working_bytes: what the calls held on top of what lay there before them; None where the peak cannot be reset.
    """

    def __init__(self, with_tensors: bool) -> None:
        gc.collect()
        self._is_peak_of_calls = reset_peak_rss()
        self._before_bytes = peak_rss_bytes()
        self._with_tensors = with_tensors

    def read(self) -> dict[str, Any]:
        peak = peak_rss_bytes()
        return {
            "peak_bytes": peak,
            "working_bytes": peak - self._before_bytes if self._is_peak_of_calls else None,
            "cuda_peak_bytes": cuda_peak_bytes(),
            "live_tensor_bytes": live_tensor_bytes() if self._with_tensors else None,
        }


def _share_of_limit(examined: ExaminedWorkload, measurement: Measurement) -> float | None:
    """Return the least time that the machine's limits allow over the measured time; None where it is not known."""
    try:
        profile = profile_layers(examined, repeats=1)
    except (RuntimeError, InputsError):  # a compiled or scripted model that cannot be watched
        return None
    device = "cuda" if examined.device_type == "cuda" else "cpu"
    limits = load_limits(describe(), device=device)
    least_s = least_time_s(profile, limits)
    return least_s * 1e3 / measurement.latency_ms if least_s > 0 else None
