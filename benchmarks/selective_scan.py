"""Time whet's selective scans beside other ways to compute them in torch, on one thread.

    python benchmarks/selective_scan.py [--rounds 7] [--trial]

The cases are a diagonal scan of 1,024 tokens, 256 channels and 16 states (forward, and forward with backward), a scalar
scan and a convolution of the sizes of a layer of Mamba-2 130m. The contenders are a loop over tokens, distances that
double (Hillis and Steele), torch's associative_scan, chunks in torch, and the dual form by products. They take turns:
in each round, each makes a burst of calls, in random order; ratios are judged by whet's comparison. Then whet's own
times from 1,024 to 65,536 tokens, and the exponent of their growth.

Writes docs/results/selective_scan.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet
machine, and writes nothing.
"""

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from circumstances import circumstances
from kept_pages import keep_pages
from quietly import quiet_machine
from scan_tables import scan_lines
from torch import Tensor

from whet.comparison.claim import claim_of
from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.causal_conv import causal_conv
from whet.kernels.selective_scan import selective_scan, ssd
from whet.kernels.selective_scan.reference import ScanInputs, outputs_of, scan_reference
from whet.measure.machine import describe
from whet.models.selective.forms import scan_chunked, scan_parallel, ssd_chunked

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WHET = "whet"
LENGTHS = [2**power for power in range(10, 17)]
CHANNELS, STATES = 256, 16  # of the diagonal scan
HEADS, HEAD_DIM, WIDE_STATES = 24, 64, 128  # of Mamba-2 130m
_FLOP = {"diagonal": 2 * 14, "scalar": 2 * 3}  # of a state: two for each instruction, of which an exponential has 11
_CHUNK = 64
_BURST_S = 0.1
_INF = float("inf")

Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    arguments = parser.parse_args()
    keep_pages(of_any_size=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    contenders = {**_diagonal(1024), **_scalar(1024), **_convolution(1024)}
    with contextlib.nullcontext() if arguments.trial else quiet_machine():
        peak = _peak_flops()
        rows = [_one_case(case, ways, peak, arguments.rounds) for case, ways in contenders.items()]
        growth = _growth()
    command = f"python benchmarks/selective_scan.py --rounds {arguments.rounds}"
    report = {
        **circumstances(command),
        "build": library().isa,
        "peak_gflops": peak / 1e9,
        "cases": rows,
        "lengths": LENGTHS,
        "growth": growth,
    }
    print("\n".join(scan_lines(report)))
    if not arguments.trial:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"selective_scan.{describe().fingerprint}.json"
        write_whole(path, json.dumps(report, indent=1) + "\n")


def _diagonal_inputs(length: int) -> list[Tensor]:
    u, delta = torch.randn(2, 1, length, CHANNELS)
    B, C = torch.randn(2, 1, length, STATES)
    return [u, delta.exp() * 0.05, -torch.rand(CHANNELS, STATES) * 16, B, C]


def _diagonal(length: int) -> dict[str, dict[str, Call]]:
    """Return the ways to compute a diagonal scan without a bias and a gate, which the measured times before had not."""
    tensors = _diagonal_inputs(length)
    u, delta, A, B, C = tensors
    wide = (u[:, :, None], delta[:, :, None], A[None], B[:, :, None], C[:, :, None])
    leaves = [x.clone().requires_grad_() for x in tensors]
    wide_leaves = [x.clone().requires_grad_() for x in wide]
    x = ScanInputs(*wide, None, None, None, None, False, -_INF, _INF)
    with_gradients = ScanInputs(*wide_leaves, None, None, None, None, False, -_INF, _INF)
    forward: dict[str, Call] = {
        WHET: partial(selective_scan, *tensors, softplus=False),
        "loop over tokens": partial(scan_reference, x),
        "Hillis and Steele": partial(scan_parallel, x),
        "torch's associative_scan": partial(_associative, x),
        f"chunks of {_CHUNK} in torch": partial(scan_chunked, x, _CHUNK),
    }
    ones = torch.ones_like(u)
    both: dict[str, Call] = {
        WHET: lambda: torch.autograd.grad(selective_scan(*leaves, softplus=False)[0], leaves, ones),
        "loop over tokens": lambda: torch.autograd.grad(scan_reference(with_gradients)[0][:, :, 0], wide_leaves, ones),
        f"chunks of {_CHUNK} in torch": lambda: torch.autograd.grad(
            scan_chunked(with_gradients, _CHUNK)[0][:, :, 0], wide_leaves, ones
        ),
    }
    return {"diagonal, forward": forward, "diagonal, forward and backward": both}


def _associative(x: ScanInputs) -> object:
    from torch._higher_order_ops.associative_scan import associative_scan

    _, delta = x.steps()
    added = x.of_heads(x.B_BLGN)[:, :, :, None] * (delta * x.u_BLHP)[..., None]
    decay = torch.exp(delta[..., None] * x.A_HqM)
    _, states = associative_scan(_combine, (decay, added), dim=1, combine_mode="generic")
    return outputs_of(x, states.transpose(0, 1))


def _combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return left[0] * right[0], right[0] * left[1] + right[1]


def _scalar(length: int) -> dict[str, dict[str, Call]]:
    u, delta = torch.randn(1, length, HEADS, HEAD_DIM), torch.rand(1, length, HEADS) * 0.1
    A, (B, C) = -torch.rand(HEADS) * 16, torch.randn(2, 1, length, 1, WIDE_STATES)
    x = ScanInputs(u, delta[..., None], A[:, None, None], B, C, None, None, None, None, False, 0.0, _INF)
    leaves = [part.clone().requires_grad_() for part in (u, delta, A, B, C)]
    other = [part.clone().requires_grad_() for part in (u, delta[..., None], A[:, None, None], B, C)]
    ones = torch.ones_like(u)
    dual = ScanInputs(*other, None, None, None, None, False, 0.0, _INF)
    forward: dict[str, Call] = {
        WHET: partial(ssd, u, delta, A, B, C, softplus=False),
        "loop over tokens": partial(scan_reference, x),
        f"dual form, chunks of {_CHUNK}": partial(ssd_chunked, x, _CHUNK),
    }
    both: dict[str, Call] = {
        WHET: lambda: torch.autograd.grad(ssd(*leaves, softplus=False)[0], leaves, ones),
        f"dual form, chunks of {_CHUNK}": lambda: torch.autograd.grad(ssd_chunked(dual, _CHUNK)[0], other, ones),
    }
    return {"scalar, forward": forward, "scalar, forward and backward": both}


def _convolution(length: int) -> dict[str, dict[str, Call]]:
    channels = HEADS * HEAD_DIM
    x, weight, bias = torch.randn(1, length, channels), torch.randn(channels, 4), torch.randn(channels)

    def by_torch() -> Tensor:
        y = F.conv1d(x.mT, weight[:, None], bias, padding=3, groups=channels)[..., :length]
        return F.silu(y).mT

    return {"convolution of 4, forward": {WHET: partial(causal_conv, x, weight, bias), "F.conv1d, F.silu": by_torch}}


def _one_case(case: str, ways: dict[str, Call], peak: float, num_rounds: int) -> dict[str, Any]:
    """Let each way make a burst in each round, in random order."""
    working, failed = {}, []
    for name, call in ways.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 - torch's own scan fails in more ways than one
            print(f"{case}: {name} failed: {error}")
            failed.append(name)
        else:
            working[name] = call
    bursts: dict[str, list[float]] = {name: [] for name in working}
    draw = random.Random(0)
    for _ in range(num_rounds):
        for name in draw.sample(list(working), len(working)):
            bursts[name].append(_burst(working[name]))
    return {
        "case": case,
        "limit_ms": _limit_ms(case, peak),
        "ms": {name: 1e3 * statistics.median(times) for name, times in bursts.items()},
        "over": {name: _ratio(times, bursts[WHET]) for name, times in bursts.items() if name != WHET},
        "failed": failed,
    }


def _limit_ms(case: str, peak: float) -> float | None:
    """Return the time of forward's instructions at the peak; None for what is not bound by them."""
    numbers = {"diagonal": 1024 * CHANNELS * STATES, "scalar": 1024 * HEADS * HEAD_DIM * WIDE_STATES}
    kind, _, what = case.partition(", ")
    return 1e3 * numbers[kind] * _FLOP[kind] / peak if what == "forward" and kind in numbers else None


def _burst(call: Call) -> float:
    """Return the median time of calls, in seconds."""
    call()
    times: list[float] = []
    while sum(times) < _BURST_S:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _ratio(theirs: list[float], ours: list[float]) -> dict[str, Any]:
    claim = claim_of(theirs, ours)
    return {"ratio": claim.ratio, "ci95": list(claim.ci95 or ()), "num_rounds": claim.num_pairs}


def _growth() -> dict[str, dict[str, Any]]:
    found: dict[str, list[float]] = {"diagonal, forward": [], "diagonal, forward and backward": []}
    for length in LENGTHS:
        ways = _diagonal(length)
        for name, times in found.items():
            times.append(1e3 * min(_burst(ways[name][WHET]) for _ in range(3)))
    logs = np.log(LENGTHS)
    return {name: {"ms": ms, "exponent": float(np.polyfit(logs, np.log(ms), 1)[0])} for name, ms in found.items()}


def _peak_flops() -> float:
    """Return the operations a second of torch's matrix product, on one thread."""
    x = torch.randn(1024, 1024)
    return 2 * 1024**3 / min(_burst(lambda: x @ x) for _ in range(3))


if __name__ == "__main__":
    main()
