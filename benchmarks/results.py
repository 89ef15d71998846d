"""Put the figures that the benchmark scripts measured into docs/results.md, README, docs and the package.

    python benchmarks/results.py

Reads docs/results/*.json, each written by a script of this directory, and writes docs/results.md and a page for each
subject in docs/results/ whole, and the rows of src/whet/techniques/measured.json. No figure in these files, nor between
the markers of the others, is typed by hand.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from families_tables import family_summary
from gpu_table import gpu_lines
from measuring_tables import MEASURING
from native_tables import native_lines
from operator_tables import operator_lines
from result_pages import write_pages
from serving_peers.section import serving_lines
from serving_tables import SERVING
from technique_rows import machines_table, technique_rows
from training_tables import SECTIONS, ladder_plot, plot_of, training_summary
from training_tables import ratio_with_interval as _ratio

from whet.files import write_whole

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
MEASURED = DOCS.parent / "src" / "whet" / "techniques" / "measured.json"
_BEGIN, _END = "<!-- measured: benchmarks/results.py -->", "<!-- end -->"
_BEGIN_TRAINING = "<!-- measured: benchmarks/results.py, training -->"
_BEGIN_FAMILIES = "<!-- measured: benchmarks/results.py, families -->"
_BEGIN_BUSY = "<!-- measured: benchmarks/results.py, busy -->"
_BEGIN_GPU = "<!-- measured: benchmarks/results.py, gpu -->"


def main() -> None:
    renderers: dict[str, Callable[[dict[str, Any]], str]] = {
        "demo": _demo,
        "peers-builtin": _peers,
        "peers-builtin-torch-only": _peers,
        "peers": _peers,
        "peers-torch-only": _peers,
        "native_peers": partial(_section, native_lines),
        "serve_peers": _serving,
        "guided": _guided,
        **{name: partial(_section, lines) for name, lines in (SERVING | MEASURING).items()},
        "limits": _limits,
        "operators": _operators,
        **{name: partial(_section, lines) for name, lines in SECTIONS.items()},
        "gpu": _gpu,
    }
    parts = {}
    for name, render in renderers.items():
        for path in sorted((DOCS / "results").glob(f"{name}.*json")):  # NAME.json, or NAME.MACHINE.json of several
            parts[path.stem] = render(json.loads(path.read_text(encoding="utf-8")))
    write_pages(DOCS, parts)
    demo = json.loads((DOCS / "results" / "demo.json").read_bytes())
    _put(README, "\n".join(["", *_summary(demo)]))
    _put(README, _training_summary(), _BEGIN_TRAINING)
    peers = sorted((DOCS / "results").glob("families_peers.*json"))[0]
    _put(README, "\n".join(["", *family_summary(json.loads(peers.read_bytes()))]), _BEGIN_FAMILIES)
    _put(DOCS / "gate.md", parts["gate"])
    _put(DOCS / "machines.md", f"## Machines\n\n{machines_table(DOCS / 'results')}\n")
    write_whole(MEASURED, json.dumps(technique_rows(DOCS / "results"), indent=1, ensure_ascii=False) + "\n")
    if "gpu" in parts:
        _put(DOCS / "gpu.md", parts["gpu"], _BEGIN_GPU)
    if "busy" in parts:
        _put(DOCS / "gate.md", parts["busy"], _BEGIN_BUSY)


def _training_summary() -> str:
    """Return the README's part on training, below a line that `_put` leaves out."""
    peers = sorted((DOCS / "results").glob("train_peers.*json"))[0]
    scripts = DOCS / "results" / "foreign_scripts.json"
    found = [json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None for path in (peers, scripts)]
    return "\n".join(["", *training_summary(found[0], found[1])])


def _put(document: Path, part: str, begin: str = _BEGIN) -> None:
    """Put a part without its heading between a document's markers."""
    head, rest = document.read_text(encoding="utf-8").split(begin)
    tail = rest.partition(_END)[2]
    write_whole(document, f"{head}{begin}\n{part.partition(chr(10))[2].strip()}\n{_END}{tail}")


def _demo(report: dict[str, Any]) -> str:
    lines = [
        "## The built-in workloads",
        "",
        *_where(report),
        "",
        "| workload | original | whet | speedup (95%) | torch.compile alone | quality | size on disk | recipe |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["workloads"]:
        low, high = row["speedup_ci95"]
        compiled = row["compile_only"]
        lines.append(
            f"| {row['target']} | {row['baseline']['latency_ms']:.2f} ms "
            f"| {row['best']['latency_ms']:.2f} ms | **{row['speedup']:.2f}x** ({low:.2f}–{high:.2f}) "
            f"| {_compiled(compiled)} "
            f"| {row['quality_name']}: {row['quality_baseline']:.4f} → {row['quality_best']:.4f} "
            f"| {row['size_bytes_baseline'] / 1e6:.1f} → {row['size_bytes_best'] / 1e6:.1f} MB "
            f"| {row['best']['label']} |"
        )
    return "\n".join([*lines, ""])


def _summary(report: dict[str, Any]) -> list[str]:
    """The README's table: beside torch.compile, and beside the best peer by hand where that ran on the same machine."""
    machine, versions = report["machine"], report["versions"]
    path = DOCS / "results" / f"peers-builtin.{machine['id']}.json"
    peers = {row["name"]: row for row in json.loads(path.read_bytes())["models"]} if path.is_file() else {}
    libraries = ", ".join(f"{name} {versions[name]}" for name in ("torch", "openvino", "onnxruntime"))
    lines = [
        f"`{report['command']}` on {machine['chip']}, {machine['cores']} cores; {libraries}.",
        "",
        "| model | original | whet | times as fast as the original (95%) | torch.compile alone "
        "| whet over the best peer by hand (95%) | quality | size on disk | what won |",
        "|---" * 9 + "|",
    ]
    for row in report["workloads"]:
        low, high = row["speedup_ci95"]
        peer = peers.get(row["target"])
        beside = "—" if peer is None else f"{_ratio(peer['over_best_peer'])}, {peer['best_peer']}"
        lines.append(
            f"| {row['target']} | {row['baseline']['latency_ms']:.2f} ms | {row['best']['latency_ms']:.2f} ms "
            f"| **{row['speedup']:.2f}x** ({low:.2f}–{high:.2f}) | {_compiled(row['compile_only'])} | {beside} "
            f"| {row['quality_name']}: {row['quality_baseline']:.4f} → {row['quality_best']:.4f} "
            f"| {row['size_bytes_baseline'] / 1e6:.1f} → {row['size_bytes_best'] / 1e6:.1f} MB "
            f"| {row['best']['label'].partition(',')[0]}{')' if ',' in row['best']['label'] else ''} |"
        )
    return lines


def _gpu(report: dict[str, Any]) -> str:
    return "\n".join(gpu_lines(report))


def _compiled(point: dict[str, Any] | None) -> str:
    """torch.compile alone, as a ratio: a screened latency is not to be compared with those of the finals."""
    if point is None:
        return "—"
    return f"{point['speedup']:.2f}x{' (screening)' if point['verdict'] == 'screened' else ''}"


def _peers(report: dict[str, Any]) -> str:
    title = "with OpenVINO and ONNX Runtime" if report["extras"] else "with torch alone"
    weights = ", with random float32 weights"
    if report.get("builtin"):
        title, weights = f"the built-in workloads, {title}", ""
    names = [n for n in report["models"][0]["latency_ms"] if n != "whet"]
    lines = [
        f"## Beside the peers, {title}, on {report['machine']['chip']}",
        "",
        *_where(report),
        "",
        f"Times are median latencies in ms. Each peer is used directly, by its own documented calls{weights}.",
        "*Over the best peer* compares whet with the fastest of torch.compile, OpenVINO int8 (NNCF) and ONNX Runtime",
        "int8; 1.00 is a draw. Ratios come from pairs of rounds, so they differ a little from the ratios of the",
        "medians. The quality of the peers' int8 models is not judged.",
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
    lines += ["", *_aims(report)]
    lines += ["", "| model | recipe | quality | size on disk | tuning took |", "|---|---|---|---|---|"]
    for row in report["models"]:
        before, after = row["size_bytes"]
        lines.append(
            f"| {row['what']} | {row['recipe']} | {_kept(row)} "
            f"| {before / 1e6:.0f} → {after / 1e6:.0f} MB | {row['tuning_s']:.0f} s |"
        )
    return "\n".join([*lines, ""])


def _aims(report: dict[str, Any]) -> list[str]:
    """whet's own goals: reached if the whole interval reaches it, missed if no part of it does, else open."""
    aims = [("over_best_peer", 0.97, "the best peer")] if report["extras"] else []
    if not report.get("builtin"):
        aims.append(("over_eager", 6.0 if report["extras"] else 5.0, "eager"))
    lines = []
    for key, aim, whom in aims:
        words: dict[str, list[str]] = {"reached by": [], "open for": [], "missed by": []}
        for row in report["models"]:
            low, high = row[key]["ci95"]
            words["reached by" if low >= aim else "missed by" if high < aim else "open for"].append(row["name"])
        said = "; ".join(f"{word} {', '.join(names)}" for word, names in words.items() if names)
        lines.append(f"- Goal: at least {aim:g}x as fast as {whom}; {said}.")
    return lines


def _kept(row: dict[str, Any]) -> str:
    """What became of a model's quality: its score, or how its outputs agree with the original's."""
    if quality := row.get("quality"):
        return f"{quality['name']}: {quality['before']:.4f} → {quality['after']:.4f}"
    return f"cosine with the original: {row['agreement']['cosine']:.5f}"


def _serving(report: dict[str, Any]) -> str:
    return "\n".join(["## Serving, beside the peers", "", *_where(report), "", *serving_lines(report), ""])


def _guided(report: dict[str, Any]) -> str:
    lines = [
        "## Structured output",
        "",
        *_where(report),
        "",
        f"What masks cost a step of {report['num_seqs']} sequences over {report['vocab_size']:,} tokens; whet's goal "
        f"is less than {report['target']:.0%}.",
        "",
        "| structure | step without | step with masks | cost (95%) | waited for masks |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["cost_ci95"]
        lines.append(
            f"| {row['structure']} | {row['plain_us'] / 1e3:.2f} ms | {row['guided_us'] / 1e3:.2f} ms "
            f"| **{row['cost']:+.1%}** ({low:+.1%} to {high:+.1%}) | {row['waited_us'] / 1e3:.3f} ms |"
        )
    return "\n".join([*lines, ""])


def _limits(report: dict[str, Any]) -> str:
    lines = ["## The machine's limits", "", *_where(report), "", "| limit | measured |", "|---|---|"]
    lines.append(f"| read bandwidth | {report['read_bandwidth'] / 1e9:.1f} GB/s |")
    lines += [f"| GEMM {dtype} | {rate / 1e9:,.0f} GOP/s |" for dtype, rate in report["gemm"].items()]
    return "\n".join([*lines, ""])


def _operators(report: dict[str, Any]) -> str:
    return "\n".join(["## The operators", "", *_where(report), "", *operator_lines(report), ""])


def _section(lines_of: Callable[[dict[str, Any]], list[str]], report: dict[str, Any]) -> str:
    heading, *lines = lines_of(report)
    if report.get("ladder"):
        write_whole(DOCS / plot_of(report), ladder_plot(report))
    return "\n".join([heading, "", *_where(report), "", *lines, ""])


def _where(report: dict[str, Any]) -> list[str]:
    machine, versions = report["machine"], report["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    commands: dict[str, list[str]] = {}
    models = report.get("models", [])
    for row in models if isinstance(models, list) else []:  # a report by name has one command
        commands.setdefault(row.get("command", report["command"]), []).append(row.get("name", ""))
    told = [f"`{command}` for {', '.join(names)}" for command, names in commands.items()]
    command = "; ".join(told) if len(told) > 1 else f"`{report['command']}`"
    return [
        f"{command} on {machine['chip']}, {machine['cores']} cores "
        f"({', '.join(machine['isa'])}; fingerprint {machine['id']}); {packages}.",
    ]


if __name__ == "__main__":
    main()
