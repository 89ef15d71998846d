"""docs/results/operators.json as lines of docs/results.md."""

from collections.abc import Callable
from typing import Any

_OURS = ("whet", "kernel")
_LAYER = ("qkv", "o", "gate+up", "down")


def operator_lines(report: dict[str, Any]) -> list[str]:
    """What follows the heading, and the lines that say on what it was measured."""
    lines = [
        f"On the shapes of a Llama-shaped model of 246 million parameters; build: {report['build']}. *Operator*: as",
        "torch calls it; *kernel*: the C++ function alone. *Of the limit*: of what the read bandwidth or the peak of",
        "products allows, both measured in the same run. Weights and caches come from memory. torch's fastest way is",
        "in the same row, and how many times longer than the operator it takes.",
        "",
        *_step_lines(report.get("decode_step_ms")),
        "| operator | what | rows | operator, µs | kernel, µs | GB/s | GFLOP/s | of the limit | torch, µs |",
        "|---" * 9 + "|",
    ]
    for row in _joined(report["cases"]):
        us = dict(row["us"])
        operator, kernel = us.pop("whet"), us.pop("kernel", None)
        best = min(operator, kernel or operator)
        way = min(us, key=lambda name: us[name])
        lines.append(
            f"| {row['operator']} | {row['what']} | {row['rows']} | {operator:,.1f} "
            f"| {'' if kernel is None else format(kernel, ',.1f')} | {row['bytes'] / best / 1e3:.1f} "
            f"| {row['ops'] / best / 1e3:,.0f} | {row['needed_us'] / best:.0%} of {row['bound']} "
            f"| {way} {us[way]:,.1f} ({us[way] / operator:.1f}x) |"
        )
    return lines


def _step_lines(step: dict[str, float] | None) -> list[str]:
    if step is None:
        return []
    kernels, torch = step["kernels"], step["torch"]
    return [
        f"One decode step of int8, attention left out: {kernels:.1f} ms by the kernels, {torch:,.0f} ms without a",
        f"compiler, where each operator unpacks its weights in torch: {torch / kernels:,.0f} times slower.",
        "",
    ]


def _joined(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The four matrices of a layer as one row; of the products' many numbers of rows, three."""
    joined: dict[tuple[str, str, int], dict[str, Any]] = {}
    for case in cases:
        if case["rows"] in (4, 64) and not case["operator"].startswith(("sample", "paged")):
            continue
        what = "a layer's four" if case["what"] in _LAYER else case["what"]
        start = {**case, "what": what, "us": {}, "bytes": 0, "ops": 0, "needed_us": 0.0}
        row = joined.setdefault((case["operator"], what, case["rows"]), start)
        row["bytes"] += case["bytes"]
        row["ops"] += case["ops"]
        row["needed_us"] += case["share"] * min(case["us"][way] for way in _OURS if way in case["us"])
        for way, us in case["us"].items():
            row["us"][way] = row["us"].get(way, 0.0) + us
    return list(joined.values())


def loss_kernel_lines(report: dict[str, Any], told: Callable[[dict[str, Any]], str]) -> list[str]:
    """Return the lines of the table of the last layer with its loss.

    Args:
        report: What benchmarks/loss_kernel.py wrote.
        told: Returns a ratio with its interval in words.
    """
    lines = [
        f"Forward and backward of {report['rows']:,} rows. The peak is above what the process held before. The limit "
        "is that of the three matrix products. Errors are relative to float64.",
        "",
        "| products, vocabulary, width | contender | ms | of the limit | peak, MB | error of loss | of dW | whet is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["cases"]:
        for name, ms in row["ms"].items():
            over = "" if name not in row["over"] else told(row["over"][name])
            errors = " | ".join(f"{error:.1e}" for error in row["errors"][name])
            cells = f"{name} | {ms:,.1f} | {row['products_ms'] / ms:.0%} | {row['peak_bytes'][name] / 1e6:,.0f}"
            lines.append(f"| {row['case'].replace('-', ', ')} | {cells} | {errors} | {over} |")
    return lines
