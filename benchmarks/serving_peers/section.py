"""The section of docs/results.md about serving, made of what benchmarks/serve_peers.py wrote."""

from typing import Any


def serving_lines(report: dict[str, Any]) -> list[str]:
    """Markdown: every figure of every engine, what was asked of whet, and how each engine was set."""
    figures, num_rounds = report["figures"], len(report["rounds"])
    lines = [
        "A Llama-shaped model of 246 million weights at random (hidden 1024, 16 layers, 16/4 heads of 64, MLP 2816,",
        f"vocabulary 32,000); two threads; medians over {num_rounds} rounds, each engine in a fresh process a round,",
        "in random order. *16 requests*: given at once, 2,184 tokens in, 1,349 out. *A token at n*: one more after n.",
    ]
    headings = list(next(iter(figures.values())))
    for part in (headings[:5], headings[5:]):
        lines += ["", "| engine | " + " | ".join(part) + " |", "|---" * (len(part) + 1) + "|"]
        for name, row in figures.items():
            bold = "**" if name.startswith("whet") else ""
            cells = [f"{bold}{_number(row[h])}{bold}" if h in row else "failed" for h in part]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| asked of whet | whet | the best peer | ratio (95%) | wanted |", "|---|---|---|---|---|"]
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
