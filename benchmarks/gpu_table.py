"""docs/results/gpu.json as lines of docs/results/gpu.md and docs/gpu.md: what ran on a GPU, when, and on which."""

from typing import Any


def gpu_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading and the lines that follow: every step of the check on a GPU, those that failed too."""
    versions, machine = report["versions"], report["machine"]
    lines = [
        f"## On a GPU: {machine['gpu']}",
        "",
        f"`{report['command']}` on {report['written_at'][:10]}; torch {versions['torch']}, "
        f"Python {versions['python']}, driver and runtime {machine['gpu_driver']}.",
        "",
        "| step | outcome | what was found |",
        "|---|---|---|",
    ]
    for step in report["steps"]:
        found = " ".join(step["sentence"].split()).replace("|", "/")
        lines.append(f"| {step['name']} | {step['status']} | {found} |")
    return [*lines, ""]
