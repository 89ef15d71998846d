"""Time and peak memory of the last layer with its cross-entropy, forward and backward: whet's kernel beside its peers.

    python benchmarks/loss_kernel.py [--cases bfloat16-32000-512 ...] [--sets 2] [--rounds 5] [--trial]

A case is the dtype of the products, the vocabulary and the width; parameters are float32, as under autocast, and there
are 2,048 rows. Every contender lives in a process of its own, idle but for its turn, and is asked for a burst of steps
in random order, round after round. A set is one such group of processes. A pair is two contenders' bursts in one round;
ratios are judged by whet's comparison. The peak is what the process held in steps above what it held before the first.
The error of the loss, and of the weight's gradient in the norm, are relative to the same in float64, for 256 rows.

Writes docs/results/loss_kernel.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet machine,
and writes nothing.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from circumstances import circumstances
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from torch import Tensor

from whet.comparison.claim import claim_of
from whet.files import write_whole
from whet.measure.machine import describe, load_limits
from whet.measure.memory import ResidentMemory, peak_rss_bytes, reset_peak_rss
from whet.techniques.mechanisms.deferred_logits import DeferredLogits

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CASES = [f"{dtype}-{V}-{D}" for dtype in ("bfloat16", "float32") for V in (32_000, 128_000) for D in (512, 2048)]
NUM_ROWS, CHECKED_ROWS = 2048, 256
WHET = "whet"
_BURST_S = 0.4

Loss = Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]


def cross_entropy(x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """PyTorch's cross_entropy of the logits, under autocast for bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        return F.cross_entropy(F.linear(x, weight), target)


def torch_compile(x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """The same, compiled."""
    return torch.compile(cross_entropy)(x, weight, target, dtype)


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """PyTorch's fused function in chunks, with its default options."""
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(x.to(dtype), weight.to(dtype), target, options=options)


def deferred(x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """whet's technique chunked_loss, as a loop calls it."""
    return F.cross_entropy(DeferredLogits(x, weight, None, torch.float32, dtype), target)


CONTENDERS: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "torch.compile": torch_compile,
    "linear_cross_entropy": linear_cross_entropy,
    "whet, chunks in torch": deferred,
    WHET: deferred,
}


def main() -> None:
    arguments = _arguments()
    if arguments.worker:
        _serve(arguments.worker, arguments.cases[0])
        return
    limits = load_limits(describe())
    rows = []
    for case in arguments.cases:
        rows.append(_one_case(case, limits.peak(case.split("-")[0]), arguments))
        _show(rows)
        if not arguments.trial:
            _write(rows, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _one_case(case: str, peak_ops: float, arguments: argparse.Namespace) -> dict[str, Any]:
    bursts: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    facts: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for number in range(arguments.sets):
        with contextlib.nullcontext() if arguments.trial else quiet_machine():
            _one_set(case, arguments.rounds, random.Random(number), bursts, facts)
    V, D = map(int, case.split("-")[1:])
    ms = {name: 1e3 * statistics.median(times) for name, times in bursts.items() if times}
    return {
        "case": case,
        "products_ms": 1e3 * 3 * 2 * NUM_ROWS * V * D / peak_ops,
        "ms": ms,
        "peak_bytes": {name: max(fact["peak_bytes"] for fact in facts[name]) for name in ms},
        "errors": {name: [facts[name][0][key] for key in ("loss_error", "gradient_error")] for name in ms},
        "over": {name: _ratio(bursts[name], bursts[WHET]) for name in ms if name != WHET},
        "failed": [name for name in CONTENDERS if name not in ms],
    }


def _ratio(theirs: list[float], ours: list[float]) -> dict[str, Any]:
    claim = claim_of(theirs, ours)
    return {"ratio": claim.ratio, "ci95": list(claim.ci95), "num_rounds": claim.num_pairs}


def _one_set(
    case: str,
    num_rounds: int,
    order: random.Random,
    bursts: dict[str, list[float]],
    facts: dict[str, list[dict[str, float]]],
) -> None:
    """Start a process for each contender, one after the other, then ask them in turn."""
    workers = {}
    for name in order.sample(list(CONTENDERS), len(CONTENDERS)):
        kernels = {"WHET_KERNELS": "off"} if name == "whet, chunks in torch" else {}
        command = [sys.executable, __file__, "--worker", name, "--cases", case]
        pipe = subprocess.PIPE
        worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **kernels})
        if found := _answer(worker):
            workers[name] = worker
            facts[name].append(found)
    for _ in range(num_rounds):
        for name in order.sample(list(workers), len(workers)):
            stream = workers[name].stdin
            assert stream is not None
            stream.write("go\n")
            stream.flush()
            bursts[name].append(_answer(workers[name])["seconds"])
    for worker in workers.values():
        worker.communicate("stop\n")


def _answer(worker: subprocess.Popen[str]) -> dict[str, float]:
    """Return what a worker says next; nothing where it has ended."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("answer "):
            found: dict[str, float] = json.loads(line.removeprefix("answer "))
            return found
    return {}


def _serve(name: str, case: str) -> None:
    """Be a worker: tell peak and errors, then time a burst of steps whenever asked."""
    kind, vocabulary, width = case.split("-")
    dtype, V, D = getattr(torch, kind), int(vocabulary), int(width)
    loss_of = CONTENDERS[name]
    torch.manual_seed(0)
    x, weight = torch.randn(NUM_ROWS, D), torch.randn(V, D).div_(D**0.5)
    target = torch.randint(0, V, (NUM_ROWS,))
    leaves = (x.requires_grad_(), weight.requires_grad_())

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        loss_of(x, weight, target, dtype).backward()

    held = ResidentMemory()()
    step()  # compiles
    reset_peak_rss()
    step()
    peak = peak_rss_bytes() - held
    errors = _errors(loss_of, x, weight, target, dtype)
    step()  # compiles anew, as the errors were taken with another number of rows
    _say(peak_bytes=peak, **errors)
    for line in sys.stdin:
        if line.strip() != "go":
            return
        times: list[float] = []
        while sum(times) < _BURST_S:
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        for leaf in leaves:
            leaf.grad = None
        _say(seconds=statistics.median(times))


def _say(**facts: float) -> None:
    print(f"answer {json.dumps(facts)}", flush=True)


def _errors(loss_of: Loss, x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> dict[str, float]:
    """Return how far the loss and the weight's gradient are from those in float64, of some of the rows."""
    torch.compiler.reset()
    rows = x.detach()[:CHECKED_ROWS], weight.detach(), target[:CHECKED_ROWS]

    def of(function: Loss, wide: torch.dtype) -> tuple[float, Tensor]:
        leaves = [leaf.to(wide).requires_grad_() for leaf in rows[:2]]
        loss = function(*leaves, rows[2], dtype)
        return float(loss.detach()), torch.autograd.grad(loss, leaves[1])[0]

    exact_loss, exact = of(lambda x, weight, target, _: F.cross_entropy(F.linear(x, weight), target), torch.float64)
    loss, gradient = of(loss_of, torch.float32)
    return {
        "loss_error": abs(loss - exact_loss) / exact_loss,
        "gradient_error": float((gradient - exact).norm() / exact.norm()),
    }


def _write(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write what is measured so far, beside the other cases in a file of this machine and these versions."""
    named = "" if arguments.cases == CASES else f" --cases {' '.join(arguments.cases)}"
    command = f"python benchmarks/loss_kernel.py --sets {arguments.sets} --rounds {arguments.rounds}{named}"
    report = {**circumstances(command), "rows": NUM_ROWS, "cases": rows}
    path = RESULTS / f"loss_kernel.{describe().fingerprint}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if all(old.get(key) == report[key] for key in ("machine", "versions", "rows")):
        found = {row["case"]: row for row in [*old["cases"], *rows]}
        report["cases"] = sorted(found.values(), key=lambda row: CASES.index(row["case"]))
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(report, indent=1) + "\n")


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "case", "contender", "ms", "of the products' limit", "peak, MB", "loss error", "gradient error", "whet is"
    )
    for row in rows:
        for name, ms in row["ms"].items():
            share = f"{row['products_ms'] / ms:.0%}"
            loss_error, gradient_error = (f"{error:.1e}" for error in row["errors"][name])
            over = row["over"].get(name)
            ratio = "" if over is None else f"{over['ratio']:.2f}x ({over['ci95'][0]:.2f}-{over['ci95'][1]:.2f})"
            peak = f"{row['peak_bytes'][name] / 1e6:,.0f}"
            table.add_row(row["case"], name, f"{ms:,.1f}", share, peak, loss_error, gradient_error, ratio)
        table.add_section()
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
