"""Measure how many operations per second a matrix product reaches in each dtype, as the best over several sizes."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# M, N, K. Small ones suit chips with large caches, and slip between what other processes do; a long K suits wide units.
SHAPES = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (1024, 1024, 8192),
    (4096, 4096, 4096),
)
CUDA_SHAPES = (*SHAPES[2:], (8192, 8192, 8192), (4096, 4096, 16384))
DTYPES = ("float32", "bfloat16", "float16", "int8")
CUDA_DTYPES = ("float32", "tfloat32", "bfloat16", "float16", "int8", "float8_e4m3fn")

_LONGEST_S = 0.4  # of one multiplication: a dtype that the chip emulates would take seconds


def gemm_peaks(
    dtypes: Sequence[str], shapes: Sequence[tuple[int, int, int]], *, device: str = "cpu", budget_s: float = 1.2
) -> dict[str, float]:
    """Return operations/s (2mnk, dense) by dtype, spending about `budget_s` on each dtype.

    All dtypes are measured on one shape before the next shape, so that what disturbs the machine for a while does not
    meet one dtype alone. A dtype that torch cannot multiply is absent. "tfloat32" is float32 rounded by NVIDIA's tensor
    cores, as PyTorch runs it where fp32_precision allows it.
    """
    ways: dict[str, list[float]] = {dtype: [] for dtype in dtypes}  # the highest rate of each way so far
    for shape in sorted(shapes, key=_operations):
        for dtype, peaks in list(ways.items()):
            found = _reached(dtype, shape, device, budget_s / len(shapes), peaks)
            if not found and not peaks:
                del ways[dtype]
            elif found:
                ways[dtype] = found
    return {dtype: max(peaks) for dtype, peaks in ways.items()}


def _reached(
    dtype: str, shape: tuple[int, int, int], device: str, budget_s: float, peaks: Sequence[float]
) -> list[float]:
    """Return the highest operations/s of each way to multiply, with this shape among them.

    A way that would take too long with this shape keeps its rate. Where torch cannot multiply this dtype, return [].
    """
    precision = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if dtype == "tfloat32" else "ieee"
    size = _operations(shape)
    if peaks and size / max(peaks) > _LONGEST_S:
        return list(peaks)
    try:
        runs = [_multiplication(dtype, shape, device), *_packed(dtype, shape, device)]
        rates = [*peaks, *[0.0] * (len(runs) - len(peaks))]
        for i, run in enumerate(runs):
            if not rates[i] or size / rates[i] <= _LONGEST_S:
                rates[i] = max(rates[i], size / best_s(run, device, budget_s / len(runs)))
        return rates
    except (
        RuntimeError,
        NotImplementedError,
        ValueError,
    ):  # what torch raises for a dtype that it cannot multiply here
        return []
    finally:
        torch.backends.cuda.matmul.fp32_precision = precision


def best_s(run: Callable[[], object], device: str, budget_s: float) -> float:
    """Return the seconds of the fastest call within the budget, of at least two calls after a warm-up call.

    The fastest call counts, since a limit is what the machine can do when nothing disturbs it.
    """
    run()
    if device == "cuda":
        return _best_cuda_s(run, budget_s)
    best = float("inf")
    num_calls = 0
    end = time.perf_counter() + budget_s
    while num_calls < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        num_calls += 1
    return best


def _best_cuda_s(run: Callable[[], object], budget_s: float, num_calls: int = 10) -> float:
    """Return the seconds of the fastest call, by CUDA events around several: launches hide behind earlier calls."""
    best = float("inf")
    torch.cuda.synchronize()
    end = time.perf_counter() + budget_s
    while best == float("inf") or time.perf_counter() < end:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(num_calls):
            run()
        stop.record()
        stop.synchronize()
        best = min(best, start.elapsed_time(stop) / 1000 / num_calls)
    return best


def _multiplication(dtype: str, shape: tuple[int, int, int], device: str) -> Callable[[], Tensor]:
    m, n, k = shape
    if dtype == "int8":
        a_MK = torch.randint(-128, 128, (1, k), dtype=torch.int8, device=device).repeat(m, 1)
        b_KN = torch.randint(-128, 128, (1, k), dtype=torch.int8, device=device).repeat(n, 1).t()
        return lambda: torch._int_mm(a_MK, b_KN)
    # Rows may be equal: drawing random numbers would take longer than multiplying them.
    a_MK = torch.randn(1, k, device=device).repeat(m, 1)
    b_NK = torch.randn(1, k, device=device).repeat(n, 1)
    if dtype == "float8_e4m3fn":
        one = torch.ones((), device=device)
        a8_MK, b8_KN = a_MK.to(torch.float8_e4m3fn), b_NK.to(torch.float8_e4m3fn).t()
        return lambda: torch._scaled_mm(
            a8_MK, b8_KN, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    torch_dtype = torch.float32 if dtype == "tfloat32" else getattr(torch, dtype)
    x_MK, w_KN = a_MK.to(torch_dtype), b_NK.to(torch_dtype).t()
    return lambda: torch.mm(x_MK, w_KN)


def _packed(dtype: str, shape: tuple[int, int, int], device: str) -> list[Callable[[], Tensor]]:
    """Return the product through oneDNN with a weight that is packed beforehand, as compiled models run it on a CPU.

    torch.mm uses MKL for float32, which leaves half of an AMD chip unused: 216 GFLOP/s where oneDNN reaches 504 (two
    cores of an EPYC with AVX-512).
    """
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return []
    try:
        run = _packed_int8(shape) if dtype == "int8" else _packed_floats(dtype, shape)
        run()
    except (AttributeError, RuntimeError):  # oneDNN does not know this dtype on this chip, or torch not the operator
        return []
    return [run]


def _packed_floats(dtype: str, shape: tuple[int, int, int]) -> Callable[[], Tensor]:
    m, n, k = shape
    x_MK = torch.randn(1, k).repeat(m, 1).to(getattr(torch, dtype))
    w_NK = torch.ops.mkldnn._reorder_linear_weight(torch.randn(1, k).repeat(n, 1).to(x_MK.dtype), m)
    return lambda: torch.ops.mkldnn._linear_pointwise(x_MK, w_NK, None, "none", [], "")


def _packed_int8(shape: tuple[int, int, int]) -> Callable[[], Tensor]:
    """Return the product of unsigned activations: without VNNI, torch._int_mm is twenty times as slow."""
    m, n, k = shape
    x_MK = torch.randint(0, 128, (1, k), dtype=torch.uint8).repeat(m, 1)
    w_NK = torch.ops.onednn.qlinear_prepack(
        torch.randint(-128, 128, (1, k), dtype=torch.int8).repeat(n, 1), list(x_MK.shape)
    )
    one_N, zero_N = torch.ones(n), torch.zeros(n, dtype=torch.int32)
    return lambda: torch.ops.onednn.qlinear_pointwise(
        x_MK, 1.0, 0, w_NK, one_N, zero_N, None, 1.0, 0, torch.float32, "none", [], ""
    )


def _operations(shape: tuple[int, int, int]) -> int:
    return 2 * shape[0] * shape[1] * shape[2]
