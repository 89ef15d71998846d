"""The lines of docs/results.md on what long contexts cost."""

from typing import Any


def context_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/long_context.MACHINE.json."""
    sizes, bank = report["sizes"], report["bank"]
    lines = [
        f"## Generation from long contexts, on {report['machine']['chip']}",
        f"Decoders of {sizes['num_hidden_layers']} layers of width {sizes['hidden_size']}, with int8 weights, write "
        f"{report['generated']} tokens after a prompt. One attends within segments of {bank['attention_block_size']} "
        f"tokens and has banks of {bank['memory_slots']} slots. *Memory*: the most that the process held beyond what "
        "it held before the request. The weights are random: this says nothing of what is remembered.",
        "",
        "| model | prompt | memory | of which state | tokens read a second | tokens written a second |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        state = f"{row['state_bytes'] / 1e6:,.1f} MB" if row["state_bytes"] else "keys and values"
        lines.append(
            f"| {row['model']} | {row['tokens']:,} | {row['bytes'] / 1e6:,.1f} MB | {state} "
            f"| {row['read_per_s']:,.0f} | {row['written_per_s']:,.0f} |"
        )
    return lines
