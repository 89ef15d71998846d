"""Compute in float16: half the bytes of float32, 11 bits of precision, numbers up to 65504.

What            As bf16, in float16. It is offered only where a matrix product measures faster in float16 than in
                float32.
When it helps   CUDA chips; CPUs with float16 products in hardware (AMX FP16, Arm FP16).
When it hurts   CPUs that emulate it are up to hundreds of times slower: refused there, by a measured product.
Numerics        About 3 to 4 significant digits. Activations beyond 65504 overflow; whet finds that and refuses.
Composes        Alone in its group (precision); with every structure, layout, compiler and thread count.
Source          Micikevicius et al., "Mixed Precision Training", 2017 (arXiv:1710.03740); torch.nn.Module.to.
"""

import time
from functools import cache

import torch

from whet.core.workload import ExaminedWorkload
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.rewriting.low_precision import to_half
from whet.techniques.technique import (
    PRECISION,
    Applicability,
    Applies,
    Candidate,
    NoOptions,
    NotApplicable,
    Stage,
    Technique,
)

_WORTH = 1.5  # float16 must be this many times as fast as float32; below, it does not make up for casts and precision
_EMULATED = 0.5  # times as fast as float32, and slower: float16 is emulated
# Rows and columns of the matrices that are multiplied. They are large enough for the product's fast kernel, and small
# enough to take 20 ms where float16 is native. On a GPU a product of size 256 takes as long as its launch in any dtype.
_CPU_SIZE, _GPU_SIZE = 256, 4096
_REPEATS = 5


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    device = examined.device_type
    ratio, size = float16_speedup(device), _size(device)
    # Where float16 is emulated, each process finds another ratio (0.0094 to 0.17 on one machine). So it tells none.
    speed = "less than half of" if ratio < _EMULATED else f"{ratio:.2g} times"
    measured = f"a {size}x{size} product in float16 runs at {speed} float32's speed here"
    return Applies(measured) if ratio >= _WORTH else NotApplicable(f"{measured}; it pays from {_WORTH} times on")


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    """Return the candidate in float16.

    Raises:
        TargetError: The outputs overflow.
    """
    return to_half(candidate, torch.float16, "fp16")


@cache
def float16_speedup(device: str) -> float:
    """Return how many times as fast a product is in float16 as in float32; 0 where the device cannot compute it."""
    try:
        return _product_s(torch.float32, device) / _product_s(torch.float16, device)
    except RuntimeError:
        return 0.0


def _size(device: str) -> int:
    """Return the number of rows and columns of the matrices that are multiplied on a device."""
    return _CPU_SIZE if device == "cpu" else _GPU_SIZE


def _product_s(dtype: torch.dtype, device: str) -> float:
    """Return the shortest time of a few products in seconds, measured after one warm-up."""
    a = torch.ones(_size(device), _size(device), device=device, dtype=dtype)
    best = float("inf")
    for i in range(1 + _REPEATS):
        start = time.perf_counter_ns()
        product = a @ a
        product[0, 0].item()  # waits for a GPU
        if i:
            best = min(best, (time.perf_counter_ns() - start) / 1e9)
    return best


TECHNIQUE = Technique(
    name="fp16",
    stage=Stage.PRECISION,
    order=20,
    card=__doc__,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype="float16", weight_scale=0.5, activation_scale=0.5
    ),
    apply=apply,
    groups=frozenset({PRECISION}),
    dtype_of=lambda options: "float16",
)
