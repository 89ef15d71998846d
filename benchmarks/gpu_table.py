"""docs/results/gpu.json as lines of docs/results/gpu.md and docs/gpu.md: what ran on a GPU, when, and on which."""

from typing import Any

from gpu_results import newest


def gpu_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading and the newest run of each group: every step, those that failed too."""
    found = ["## On a GPU", ""]
    for run in newest(report["runs"]).values():
        machine, versions = run["machine"], run["versions"]
        found += [
            f"### {run['group']}, {run['written_at'][:10]}, commit {run['commit'] or 'unknown'}",
            "",
            f"`{run['command']}` on {machine['gpu']}; torch {versions['torch']}, Python {versions['python']}, driver "
            f"and runtime {machine['gpu_driver']}{'' if run['is_complete'] else '; the run was cut off'}.",
            "",
            "| step | outcome | what was found |",
            "|---|---|---|",
        ]
        for step in run["steps"]:
            sentence = " ".join(step["sentence"].split()).replace("|", "/")
            found.append(f"| {step['name']} | {step['status']} | {sentence} |")
        found.append("")
    return found
