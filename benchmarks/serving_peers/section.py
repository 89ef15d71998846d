"""The section of docs/results.md about serving, made of what benchmarks/serve_peers.py wrote."""

from typing import Any


def serving_lines(report: dict[str, Any]) -> list[str]:
    """Markdown: every figure of every engine, whet beside the best of its peers, and how each engine was set."""
    figures, num_rounds = report["figures"], len(report["rounds"])
    lines = [
        "The model is Llama-shaped with 246 million random weights (hidden size 1024, 16 layers, 16 query and 4 key",
        "heads of 64, MLP 2816, vocabulary 32,000). Engines use two threads and run in a fresh process for each round,",
        f"in random order; figures are medians over {num_rounds} rounds. *16 requests* are sent at once, with 2,184",
        "tokens in and 1,349 out. *A token at n* is the time of the next token after n.",
    ]
    headings = list(next(iter(figures.values())))
    for part in (headings[:5], headings[5:]):
        lines += ["", "| engine | " + " | ".join(part) + " |", "|---" * (len(part) + 1) + "|"]
        for name, row in figures.items():
            bold = "**" if name.startswith("whet") else ""
            cells = [f"{bold}{_number(row[h])}{bold}" if h in row else "failed" for h in part]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| comparison | whet | the best peer | ratio (95%) | whet's goal |", "|---|---|---|---|---|"]
    for claim in report["claims"]:
        low, high = claim["ci95"]
        lines.append(
            f"| {claim['what']} | {_number(claim['ours'])} | {claim['against']} "
            f"| **{claim['ratio']:.2f}x** ({low:.2f}–{high:.2f}) | {claim['wanted']} |"
        )
    lines += ["", "How each engine was set:", ""]
    for name, settings in report["settings"].items():
        said = "; ".join(f"{key} {value}" for key, value in settings.items() if key not in ("version", "system"))
        lines.append(f"- {name}: {settings.get('version', 'failed')}; {said}")
    return lines


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
