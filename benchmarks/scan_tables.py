"""docs/results/selective_scan.MACHINE.json as lines of docs/results.md."""

from typing import Any


def scan_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on what it was measured."""
    lines = [
        f"## Selective scans, on {report['machine']['chip']}",
        f"float32, one thread, batch 1; build: {report['build']}. *Diagonal* scans have a rate for each channel and "
        "state (Mamba-1), *scalar* ones a rate for each head (Mamba-2). Ratios over whet come from pairs in one "
        "process. The limit is the time of the kernel's arithmetic without memory, at the "
        f"{report['peak_gflops']:,.0f} GFLOP/s that torch's matrix product reached in the same run.",
        "",
        "| case | contender | ms | over whet (95%) | of the limit |",
        "|---|---|---|---|---|",
    ]
    for row in report["cases"]:
        for name, ms in row["ms"].items():
            over = row["over"].get(name)
            ratio = "" if over is None else f"{over['ratio']:.1f}x ({over['ci95'][0]:.1f}–{over['ci95'][1]:.1f})"
            share = f"{row['limit_ms'] / ms:.0%}" if name == "whet" and row["limit_ms"] else ""
            lines.append(f"| {row['case']} | {name} | {ms:,.2f} | {ratio} | {share} |")
        lines += [f"| {row['case']} | {name} | failed | | |" for name in row["failed"]]
    lines += ["", "How the time grows with the tokens L, as L to the power of the exponent:", ""]
    lengths = [str(length) for length in report["lengths"]]
    lines += [f"| whet | {' | '.join(lengths)} | exponent |", "|---" * (len(lengths) + 2) + "|"]
    for name, row in report["growth"].items():
        times = " | ".join(f"{ms:,.2f} ms" for ms in row["ms"])
        lines.append(f"| {name} | {times} | **{row['exponent']:.3f}** |")
    return lines


def model_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/selective_models.MACHINE.json."""
    steps = report["steps"]
    lines = [
        f"## State-space models, on {report['machine']['chip']}",
        f"Tokens a second of models with random weights; build: {report['build']}. The limit of a decode step is the "
        f"time to move its weights once, and its states twice, at {report['read_gb_s']:.1f} GB/s.",
        "",
        f"| model | way | weights | state | {' | '.join(steps)} |",
        "|---" * (len(steps) + 4) + "|",
    ]
    for row in report["rows"]:
        sizes = [f"{row[key] / 1e6:,.1f} MB" if key in row else "" for key in ("weight_bytes", "state_bytes")]
        cells = [
            f"{row['per_second'][step]:,.0f}"
            + (f" ({row['of_limit'][step]:.0%} of the limit)" if step in row["of_limit"] else "")
            for step in steps
        ]
        lines.append(f"| {row['model']} | {row['way']} | {' | '.join(sizes + cells)} |")
    return lines


def draft_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/selective_drafts.MACHINE.json."""
    drafts = report["num_drafts"]
    lines = [
        f"## Drafts and snapshots of state-space models, on {report['machine']['chip']}",
        f"Milliseconds of a step of one sequence; int8 weights, random; build: {report['build']}. A step with {drafts} "
        "drafts also reads one token; the step before it had as many, of which none or all were accepted. It pays once "
        "it brings more tokens than the last column says. A snapshot copies a sequence's states.",
        "",
        f"| model | state | a draft | one token | {drafts + 1} tokens of a prompt | {drafts} drafts, none accepted | "
        f"{drafts} drafts, all accepted | snapshot | tokens to pay |",
        "|---" * 9 + "|",
    ]
    for row in report["rows"]:
        ms = row["ms"]
        names = ("one token", "five tokens of a prompt", "none", "all", "snapshot")
        cells = [f"{row[key] / 1e6:,.2f} MB" for key in ("state_bytes", "draft_bytes")]
        cells += [f"{ms[name]:,.2f}" for name in names]
        lines.append(f"| {row['model']} | {' | '.join(cells)} | {max(ms['none'], ms['all']) / ms['one token']:.2f} |")
    return lines


def million_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/million_tokens.MACHINE.json."""
    places = [f"{at['tokens']:,}" for at in report["rows"][0]["noted"]]
    lines = [
        f"## {report['tokens']:,} tokens in constant memory",
        f"A Mamba of {report['parameters'] / 1e6:.1f} million new weights reads them in parts of 4,096. Resident "
        "memory of the process in MB, after so many tokens. The states at the end differ by "
        f"{report['states_differ_by']:.1e} of the largest value, which is rounding.",
        "",
        f"| way | state | {' | '.join(places)} | seconds |",
        "|---" * (len(places) + 3) + "|",
    ]
    for row in report["rows"]:
        sizes = " | ".join(f"{at['resident_bytes'] / 1e6:,.1f}" for at in row["noted"])
        lines.append(f"| {row['way']} | {row['state_bytes'] / 1e3:,.1f} kB | {sizes} | {row['seconds']:,.1f} |")
    return lines
