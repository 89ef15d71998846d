"""How fast whet's operators are on the shapes of the 246M model, beside torch's own ways and the machine's limits.

    python benchmarks/operators.py [--only NAME ...] [--seconds 0.05]

Prints, for each operator and number of rows: time, GB/s, GFLOP/s, the share of what this machine can do at best (the
time that its read bandwidth or its peak of products needs, whichever is longer; both measured as the run begins), and
torch's ways in the same run, turn by turn. Then one decode step made of the operators, with the kernels and as it is
without a compiler. Writes docs/results/operators.json, where figures of operators that were left out by --only stay;
benchmarks/results.py makes the tables.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from kept_pages import keep_pages
from operator_cases import EPS, FFN, HIDDEN, LAYER, OPERATORS, VOCAB, Call, Case, cases
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.gated_mlp import gated_mlp, pack_mlp
from whet.kernels.linear import linear, pack_weights
from whet.kernels.linear.layout import Kind
from whet.kernels.sample import sample
from whet.measure.machine import Limits, describe, measure_limits

RESULT = Path(__file__).parents[1] / "docs" / "results" / "operators.json"
OURS = ("whet", "kernel")
_ROUNDS = 5
_OTHERS_SLEEP_S = 0.01  # OpenMP's threads spin for some milliseconds after torch's work, on the cores of the next way
_NUM_LAYERS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*OPERATORS, "step"), default=(*OPERATORS, "step"))
    parser.add_argument("--seconds", type=float, default=0.05, help="of each way of each case")
    parser.add_argument("--step-ms", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_pages()
    if arguments.step_ms:
        print(_step_ms())
        return
    machine = describe()
    limits = measure_limits(machine)
    measured: list[dict[str, Any]] = []
    with torch.inference_mode(), quiet_machine():
        for operator in OPERATORS:
            if operator in arguments.only:
                measured += _show(operator, cases(operator), limits, arguments.seconds)
    report = _before(machine.fingerprint)
    kept = [row for row in report.get("cases", ()) if row["group"] not in arguments.only]
    report["cases"] = sorted(kept + measured, key=lambda row: OPERATORS.index(row["group"]))
    report |= {
        **circumstances("python benchmarks/operators.py"),
        "build": library().isa,
        "limits": asdict(limits),
    }
    if "step" in arguments.only:
        with quiet_machine():
            report["decode_step_ms"] = _steps()
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")


def _show(operator: str, found: Iterator[Case], limits: Limits, seconds: float) -> list[dict[str, Any]]:
    table = Table("operator", "what", "rows", "µs", "kernel µs", "GB/s", "GFLOP/s", "of the limit", "torch's ways, µs")
    measured = []
    for case in found:
        row = {"group": operator, **_measure(case, limits, seconds)}
        theirs = ", ".join(f"{way} {us:,.1f}" for way, us in row["us"].items() if way not in OURS)
        best = min(row["us"][way] for way in OURS if way in row["us"])
        figures = (f"{row['us']['whet']:,.1f}", f"{best:,.1f}", f"{case.num_bytes / best / 1e3:.1f}")
        share = f"{row['share']:.0%} of {row['bound']}"
        table.add_row(
            case.operator, case.what, str(case.rows), *figures, f"{case.num_ops / best / 1e3:,.0f}", share, theirs
        )
        measured.append(row)
    Console(width=190).print(table)
    return measured


def _measure(case: Case, limits: Limits, seconds: float) -> dict[str, Any]:
    """The median of rounds in which the ways take turns."""
    times: dict[str, list[float]] = {way: [] for way in case.ways}
    for _ in range(_ROUNDS):
        for way in random.sample(list(case.ways), len(case.ways)):
            time.sleep(_OTHERS_SLEEP_S)
            times[way].append(_time(case.ways[way], seconds / _ROUNDS))
    us = {way: 1e6 * statistics.median(taken) for way, taken in times.items()}
    # Weights come from memory; what is small and read again and again, as rows of logits are, from a cache.
    is_small = case.num_bytes < 2**20 and len(case.ways["whet"]) == 1
    bandwidth = limits.bandwidth(case.num_bytes) if is_small else limits.read_bandwidth
    needs = {"bandwidth": case.num_bytes / bandwidth, f"{case.dtype} products": case.num_ops / limits.peak(case.dtype)}
    bound = max(needs, key=lambda name: needs[name])
    share = 1e6 * needs[bound] / min(us[way] for way in OURS if way in us)
    return {
        "operator": case.operator,
        "what": case.what,
        "rows": case.rows,
        "bytes": case.num_bytes,
        "ops": case.num_ops,
        "us": us,
        "bound": bound,
        "share": share,
    }


def _time(calls: Sequence[Call], seconds: float) -> float:
    """Seconds of a call, after some that are not measured."""
    batch = 1
    for part in (0.3 * seconds, seconds):
        count, taken, began = 0, 0.0, time.perf_counter()
        while taken < part:
            for _ in range(batch):
                calls[count % len(calls)]()
                count += 1
            taken = time.perf_counter() - began
        batch = max(1, int(2e-4 * count / taken))  # the clock is looked at every 200 µs
    return taken / count


def _steps() -> dict[str, float]:
    """One decode step without attention: by the kernels, and in torch as where there is no compiler."""
    found = {}
    for name, kernels in (("kernels", ""), ("torch", "off")):
        environment = {**os.environ, "WHET_KERNELS": kernels}
        command = [sys.executable, __file__, "--step-ms"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[name] = float(done.stdout)
    print(
        f"a decode step of int8, attention left out: {found['kernels']:.1f} ms; "
        f"without a compiler {found['torch']:,.0f} ms"
    )
    return found


def _step_ms() -> float:
    layers = []
    for _ in range(_NUM_LAYERS):
        qkv, o = (pack_weights(torch.randn(*LAYER[name]), Kind.S8) for name in ("qkv", "o"))
        mlp = pack_mlp(torch.randn(FFN, HIDDEN), torch.randn(FFN, HIDDEN), torch.randn(HIDDEN, FFN), Kind.S8)
        layers.append((qkv, o, mlp))
    head, zeros = pack_weights(torch.randn(VOCAB, HIDDEN), Kind.S8), torch.zeros(1)
    norm = partial(F.rms_norm, normalized_shape=(HIDDEN,), weight=torch.ones(HIDDEN), eps=EPS)

    def step(x: torch.Tensor) -> torch.Tensor:
        for qkv, o, mlp in layers:
            mixed = linear(norm(x), qkv)[:, :HIDDEN].contiguous()
            x = x + linear(mixed, o)
            x = x + gated_mlp(norm(x), mlp)
        logits = linear(norm(x), head)
        return sample(logits, zeros, zeros.int(), zeros, zeros, zeros)

    with torch.inference_mode():
        return 1e3 * _time((lambda: step(torch.randn(1, HIDDEN)),), 2.0)


def _before(fingerprint: str) -> dict[str, Any]:
    """What stands in the file already, where it is of this machine."""
    if not RESULT.exists():
        return {}
    report: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return report if report["machine"]["id"] == fingerprint else {}


if __name__ == "__main__":
    main()
