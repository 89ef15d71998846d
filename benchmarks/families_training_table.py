"""docs/results/families_training.MACHINE.json as lines of docs/results.md."""

from typing import Any


def training_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on what it was measured."""
    rows, tokens = report["batch"]
    goal = report["goal"]
    lines = [
        f"## Training a state-space model, on {report['machine']['chip']}",
        f"Optimiser steps of docs-ssm's model ({report['model']}), {rows} rows of {tokens} tokens. Ratios come from "
        "pairs in one process. The limit is the time of the matrix products at the measured peak, of the scan's "
        "arithmetic at that of float32, and of the optimiser's bytes at the measured bandwidth; it leaves the "
        "activations out. transformers has no kernel for this scan on a CPU, and goes through the tokens in Python. "
        f"whet's goal is {goal:g}x over transformers and over compiled PyTorch.",
        "",
        "| way | ms a step | tokens/s | of the limit | whet over it in float32 (95%) | in autocast (95%) |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        limit = sum(row["limit_ms"].values()) if "limit_ms" in row else None
        share = "" if limit is None else f"{limit / row['ms']:.0%}"
        ratios = [
            f"**{one['ratio']:.1f}x** ({one['ci95'][0]:.1f}–{one['ci95'][1]:.1f}), {_reached(one, goal)}"
            for one in row["over"].values()
        ] or ["", ""]
        lines.append(
            f"| {row['name']} | {row['ms']:,.0f} | {row['tokens_per_s']:,.0f} | {share} | {' | '.join(ratios)} |"
        )
    lines.append("")
    for row in report["rows"]:
        if "limit_ms" in row:
            parts = ", ".join(f"{part} {one:.1f} ms" for part, one in row["limit_ms"].items())
            lines.append(f"The limit of *{row['name']}*: {parts}.")
    scores = ", ".join(f"{score:.4f} of {name}" for name, score in report["bits_per_byte"].items())
    return [*lines, "", f"Bits per byte of held-out text, of the models that come with whet: {scores}."]


def _reached(ratio: dict[str, Any], goal: float) -> str:
    low, high = ratio["ci95"]
    return "reached" if low >= goal else "missed" if high < goal else "open"
