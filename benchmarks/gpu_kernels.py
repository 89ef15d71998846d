"""The step `kernels` of `benchmarks/gpu.py`: whet's kernels in Triton beside the memory's limit and beside torch.

A limit is the time in which the GPU's memory moves what a kernel must read and write once. Sizes are those of a layer
of Mamba-130m and Mamba-2-130m, and of the loss over 32,000 tokens. Shape suffixes: B batch, L tokens, D channels,
H heads, P channels of a head, N states, V vocabulary, C rows.
"""

import contextlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.comparison.claim import claim_of
from whet.kernels.causal_conv import causal_conv
from whet.kernels.cross_entropy import write_gradients_
from whet.kernels.selective_scan import selective_scan, ssd
from whet.kernels.selective_scan.reference import ScanInputs
from whet.measure.clock import measure_calls
from whet.measure.machine import describe, load_limits
from whet.models.selective.forms import scan_chunked, ssd_chunked

_INF = float("inf")
_ROUNDS = 7
_CHUNK = 64  # tokens of torch's chunked forms

Call = Callable[[], object]
Scan = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A kernel's call, torch's way to the same, and the bytes that must be moved."""

    ours: Call
    torchs: Call
    num_bytes: int


def kernels(device: str, is_small: bool) -> dict[str, Any]:
    """Time each kernel in turns with torch, and compare it with its limit."""
    limits = load_limits(describe(), device=device)
    torch.manual_seed(0)
    figures, said = {}, []
    with torch.device(device):
        for name, make in CASES.items():
            try:
                row = _measured(make(is_small), limits.read_bandwidth)
            except Exception as error:  # noqa: BLE001 - one kernel that fails does not hide the others
                figures[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
                said.append(f"{name} failed: {error}")
                continue
            figures[name] = row
            said.append(
                f"{name} {row['ms']:.3f} ms, {row['limit_ms'] / row['ms']:.0%} of the memory's limit, "
                f"{row['over_torch']:.1f}x torch ({row['ci95'][0]:.1f} to {row['ci95'][1]:.1f})"
            )
            if device == "cuda":
                torch.cuda.empty_cache()
    return {"sentence": "; ".join(said), "figures": figures, "ok": not any("failed" in row for row in figures.values())}


def _measured(case: Case, bandwidth: float) -> dict[str, Any]:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(_ROUNDS):
        for call, times in ((case.ours, ours), (case.torchs, theirs)):
            measured = measure_calls([call], budget_s=0.1, context=contextlib.nullcontext())
            times.append(measured.latency_ms)
    claim = claim_of(theirs, ours)
    return {
        "ms": statistics.median(ours),
        "torch_ms": statistics.median(theirs),
        "limit_ms": 1e3 * case.num_bytes / bandwidth,
        "over_torch": claim.ratio,
        "ci95": claim.ci95,
    }


def _diagonal(is_small: bool) -> list[Tensor]:
    """u, delta, A, B and C of a layer of Mamba-130m."""
    B, L, D, N = (1, 64, 32, 16) if is_small else (8, 2048, 1536, 16)
    return [torch.randn(B, L, D), torch.rand(B, L, D) * 0.1, -torch.rand(D, N) * 16, *torch.randn(2, B, L, N)]


def _scalar(is_small: bool) -> list[Tensor]:
    """x, delta, A, B and C of a layer of Mamba-2-130m."""
    B, L, H, P, N = (1, 64, 2, 16, 16) if is_small else (8, 2048, 24, 64, 128)
    return [torch.randn(B, L, H, P), torch.rand(B, L, H) * 0.1, -torch.rand(H) * 16, *torch.randn(2, B, L, 1, N)]


def _wide(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> ScanInputs:
    """The inputs of a diagonal scan as torch's forms take them: channels are heads of one channel."""
    rest = (None, None, None, None, False, -_INF, _INF)
    return ScanInputs(u[:, :, None], delta[:, :, None], A[None], B[:, :, None], C[:, :, None], *rest)


def _dual(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> ScanInputs:
    return ScanInputs(x, delta[..., None], A[:, None, None], B, C, None, None, None, None, False, 0.0, _INF)


def _forward(tensors: list[Tensor], ours: Scan, torchs: Scan) -> Case:
    return Case(lambda: ours(*tensors), lambda: torchs(*tensors), _bytes(*tensors, tensors[0]))


def _with_backward(tensors: list[Tensor], ours: Scan, torchs: Scan) -> Case:
    leaves = [x.requires_grad_() for x in tensors]
    ones = torch.ones_like(leaves[0])
    return Case(
        lambda: torch.autograd.grad(ours(*leaves), leaves, ones),
        lambda: torch.autograd.grad(torchs(*leaves), leaves, ones),
        _bytes(*leaves, leaves[0]) + _bytes(*leaves, *leaves, ones),
    )


def _our_scan(*tensors: Tensor) -> Tensor:
    return selective_scan(*tensors, softplus=False)[0]


def _torchs_scan(*tensors: Tensor) -> Tensor:
    return scan_chunked(_wide(*tensors), _CHUNK)[0][:, :, 0]


def _our_ssd(*tensors: Tensor) -> Tensor:
    return ssd(*tensors, softplus=False)[0]


def _torchs_ssd(*tensors: Tensor) -> Tensor:
    return ssd_chunked(_dual(*tensors), _CHUNK)[0]


def _convolution(is_small: bool) -> Case:
    B, L, D = (1, 64, 32) if is_small else (8, 2048, 1536)
    x_BLD, weight_DK, bias_D = torch.randn(B, L, D), torch.randn(D, 4), torch.randn(D)

    def by_torch() -> Tensor:
        return F.silu(F.conv1d(x_BLD.mT, weight_DK[:, None], bias_D, padding=3, groups=D)[..., :L]).mT

    return Case(lambda: causal_conv(x_BLD, weight_DK, bias_D), by_torch, _bytes(x_BLD, x_BLD, weight_DK, bias_D))


def _loss(is_small: bool) -> Case:
    C, V = (32, 500) if is_small else (4096, 32_000)
    logits_CV, target_C = torch.randn(C, V, dtype=torch.bfloat16), torch.randint(V, (C,))
    leaf = logits_CV.clone().requires_grad_()

    def by_torch() -> object:
        return torch.autograd.grad(F.cross_entropy(leaf, target_C, reduction="sum"), leaf)

    # The kernel reads the logits twice where a row exceeds the cache; that it could read them once is the limit.
    return Case(lambda: write_gradients_(logits_CV, target_C), by_torch, _bytes(logits_CV, logits_CV))


def _bytes(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


CASES: dict[str, Callable[[bool], Case]] = {
    "diagonal scan": lambda is_small: _forward(_diagonal(is_small), _our_scan, _torchs_scan),
    "diagonal scan, with backward": lambda is_small: _with_backward(_diagonal(is_small), _our_scan, _torchs_scan),
    "scalar scan": lambda is_small: _forward(_scalar(is_small), _our_ssd, _torchs_ssd),
    "scalar scan, with backward": lambda is_small: _with_backward(_scalar(is_small), _our_ssd, _torchs_ssd),
    "convolution": _convolution,
    "cross-entropy": _loss,
}
