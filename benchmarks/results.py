"""Put the figures that the benchmark scripts measured into docs/results.md, and the first table into the README.

    python benchmarks/results.py

Reads docs/results/*.json, each written by a script of this directory, and writes docs/results.md whole. No figure in
that file, nor between the README's markers, is typed by hand.
"""

import json
from pathlib import Path
from typing import Any

from whet.files import write_whole

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
_BEGIN, _END = "<!-- measured: benchmarks/results.py -->", "<!-- end -->"
_HEAD = """# Measured results

Written by `python benchmarks/results.py` from what the benchmark scripts measured; nothing here is typed by hand.
Times of different machines cannot be compared: each table says where it was measured. Ratios come from one run, in
pairs, with 95% bootstrap intervals.
"""


def main() -> None:
    parts = [_HEAD]
    for name, render in (("demo", _demo), ("peers", _peers), ("peers-torch-only", _peers), ("limits", _limits)):
        path = DOCS / "results" / f"{name}.json"
        if path.exists():
            parts.append(render(json.loads(path.read_text(encoding="utf-8"))))
    write_whole(DOCS / "results.md", "\n".join(parts))
    demo = _demo(json.loads((DOCS / "results" / "demo.json").read_text(encoding="utf-8")))
    readme = README.read_text(encoding="utf-8")
    head, rest = readme.split(_BEGIN)
    tail = rest.split(_END)[1]
    write_whole(README, f"{head}{_BEGIN}\n{demo.partition(chr(10))[2].strip()}\n{_END}{tail}")


def _demo(report: dict[str, Any]) -> str:
    lines = [
        "## The built-in workloads",
        "",
        *_where(report),
        "",
        "| workload | original | torch.compile alone | whet | speedup (95%) | quality | size on disk | recipe |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["workloads"]:
        low, high = row["speedup_ci95"]
        compiled = row["compile_only"]
        lines.append(
            f"| {row['target']} | {row['baseline']['latency_ms']:.2f} ms "
            f"| {'—' if compiled is None else format(compiled['latency_ms'], '.2f') + ' ms'} "
            f"| {row['best']['latency_ms']:.2f} ms | **{row['speedup']:.2f}x** ({low:.2f}–{high:.2f}) "
            f"| {row['quality_name']}: {row['quality_baseline']:.4f} → {row['quality_best']:.4f} "
            f"| {row['size_bytes_baseline'] / 1e6:.1f} → {row['size_bytes_best'] / 1e6:.1f} MB "
            f"| {row['best']['label']} |"
        )
    return "\n".join([*lines, ""])


def _peers(report: dict[str, Any]) -> str:
    title = "with OpenVINO and ONNX Runtime" if report["extras"] else "with torch alone"
    names = [n for n in report["models"][0]["latency_ms"] if n != "whet"]
    lines = [
        f"## Beside the peers, {title}",
        "",
        *_where(report),
        "",
        "Median latency in ms; each peer used directly by its own documented calls, fp32 weights at random. *Over the",
        "best peer*: of torch.compile, OpenVINO int8 (NNCF) and ONNX Runtime int8, the fastest; 1.00 is a draw.",
        "",
        "| model | " + " | ".join(names) + " | whet | over the best peer | over eager |",
        "|---" * (len(names) + 4) + "|",
    ]
    for row in report["models"]:
        times = [f"{row['latency_ms'][n]:.2f}" if n in row["latency_ms"] else "failed" for n in names]
        lines.append(
            f"| {row['what']} | " + " | ".join(times) + f" | **{row['latency_ms']['whet']:.2f}** "
            f"| {_ratio(row['over_best_peer'])} ({row['best_peer']}) | {_ratio(row['over_eager'])} |"
        )
    lines += ["", "| model | recipe | cosine with the original | size on disk | tuning took |", "|---|---|---|---|---|"]
    for row in report["models"]:
        before, after = row["size_bytes"]
        lines.append(
            f"| {row['what']} | {row['recipe']} | {row['agreement']['cosine']:.5f} "
            f"| {before / 1e6:.0f} → {after / 1e6:.0f} MB | {row['tuning_s']:.0f} s |"
        )
    return "\n".join([*lines, ""])


def _limits(report: dict[str, Any]) -> str:
    lines = ["## The machine's limits", "", *_where(report), "", "| limit | measured |", "|---|---|"]
    lines.append(f"| read bandwidth | {report['read_bandwidth'] / 1e9:.1f} GB/s |")
    lines += [f"| GEMM {dtype} | {rate / 1e9:,.0f} GOP/s |" for dtype, rate in report["gemm"].items()]
    return "\n".join([*lines, ""])


def _where(report: dict[str, Any]) -> list[str]:
    machine, versions = report["machine"], report["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [
        f"`{report['command']}` on {machine['chip']}, {machine['cores']} cores "
        f"({', '.join(machine['isa'])}; fingerprint {machine['id']}); {packages}.",
    ]


def _ratio(ratio: dict[str, Any]) -> str:
    low, high = ratio["ci95"]
    return f"**{ratio['ratio']:.2f}x** ({low:.2f}–{high:.2f})"


if __name__ == "__main__":
    main()
