"""Write the table of the versions of examples/latentwire."""

from typing import Any


def latentwire_lines(report: dict[str, Any]) -> list[str]:
    """Return the table's lines, and what they were measured with."""
    lines = [
        f"Steps of examples/latentwire; whet's goal is {report['goal']:g}x over the slow script at the same loss. "
        f"The recipe: {report['recipe']}. {report['diagnosis']} {report['losses']}".strip(),
        "",
        "| what | before | after | times as fast (95%) | training loss |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['what']} | {row['old_ms']:.0f} ms | {row['new_ms']:.0f} ms "
        f"| **{row['ratio']:.2f}x** ({row['ci95'][0]:.2f}–{row['ci95'][1]:.2f}) | {row['loss']} |"
        for row in report["rows"]
    ]
    return lines
