"""The table of what shared weights cost and save."""

from typing import Any


def shared_weights_lines(report: dict[str, Any]) -> list[str]:
    """Return the lines of the section, without its heading and circumstances."""
    megabytes = report["weight_bytes"] / 1e6
    loads, memory = report["load_s"], report["two_processes_bytes"]
    lines = [
        f"A step of one token, of a decoder whose int8 matrices take {megabytes:,.0f} MB, by where they lie. A ratio "
        "above 1 is faster than private memory.",
        "",
        "| weights lie in | ms | ratio (95%) |",
        "|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["ci95"]
        lines.append(f"| {row['name']} | {row['ms']:.2f} | {row['ratio']:.3f}x ({low:.3f}–{high:.3f}) |")
    lines += [
        "",
        f"Two processes hold {memory['private'] / 1e6:,.0f} MB with weights of their own, and "
        f"**{memory['shared'] / 1e6:,.0f} MB** with shared ones (the sum of their PSS). Loading takes "
        f"{loads['private, second']:.1f} s with weights of its own, {loads['shared, first']:.1f} s for the process "
        f"that packs the shared ones, and **{loads['shared, second']:.1f} s** for the next one.",
    ]
    return lines
