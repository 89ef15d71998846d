"""Collect what was measured of each technique, from the figures that the other scripts wrote.

`python benchmarks/results.py` writes the rows to src/whet/techniques/measured.json; `whet techniques NAME` and the
pages of the documentation show them.
"""

import json
from pathlib import Path
from typing import Any

_SAME_ELSEWHERE = ("peers-builtin", "peers")  # the same script on several machines
_WITH_RECIPES = ("demo", "peers-builtin", "peers-builtin-torch-only", "peers", "peers-torch-only")


def technique_rows(results: Path) -> list[dict[str, Any]]:
    """Return a row for each recipe that was measured, in the order of the files.

    Args:
        results: The directory of the figures, docs/results.
    """
    rows: list[dict[str, Any]] = []
    for name in _WITH_RECIPES:
        for path in sorted(results.glob(f"{name}.*json")):
            report = json.loads(path.read_text(encoding="utf-8"))
            where = {"chip": report["machine"]["chip"], "fingerprint": report["machine"]["id"]}
            for found in report.get("workloads", []):
                rows += [{**row, **where, "command": report["command"]} for row in _tuned(found)]
            for found in report.get("models", []):
                row = _beside_peers(found)
                rows.append({**row, **where, "command": found.get("command", report["command"])})
    return [row for row in rows if row["techniques"]]


def machines_table(results: Path) -> str:
    """Return a Markdown table of the speedup over eager of each model on each machine.

    Args:
        results: The directory of the figures, docs/results.
    """
    speedups: dict[str, dict[str, str]] = {}
    chips: dict[str, None] = {}
    for name in _SAME_ELSEWHERE:
        for path in sorted(results.glob(f"{name}.*.json")):
            report = json.loads(path.read_text(encoding="utf-8"))
            chip = report["machine"]["chip"]
            chips[chip] = None
            for found in report["models"]:
                ratio, (low, high) = found["over_eager"]["ratio"], found["over_eager"]["ci95"]
                text = f"{found['latency_ms']['eager']:.1f} → {found['latency_ms']['whet']:.1f} ms, "
                speedups.setdefault(found["what"], {})[chip] = f"{text}**{ratio:.2f}x** ({low:.2f}–{high:.2f})"
    lines = [["model", *chips], ["---"] * (len(chips) + 1)]
    lines += [[model, *(found.get(chip, "—") for chip in chips)] for model, found in speedups.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _tuned(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the winner of a tuning run, and torch.compile alone, which may have been screened only."""
    rows = []
    for point in (found["best"], found["compile_only"]):
        if point is None:
            continue
        quality = "" if point["quality"] is None else _quality(found["quality_name"], found["quality_baseline"], point)
        rows.append(
            {
                "techniques": [step["technique"] for step in point["steps"]],
                "model": found["target"],
                "recipe": point["label"],
                "speedup": point["speedup"],
                "ci95": None if point["verdict"] == "screened" else point["speedup_ci95"],
                "quality": quality,
            }
        )
    return rows


def _quality(name: str, before: float, point: dict[str, Any]) -> str:
    return f"{name} {before:.4f} before, {point['quality']:.4f} after"


def _beside_peers(found: dict[str, Any]) -> dict[str, Any]:
    quality = found.get("quality")
    cosine = f"cosine with the original's outputs {found['agreement']['cosine']:.5f}"
    return {
        "techniques": [step.partition("(")[0] for step in found["recipe"].split(" + ")],
        "model": found["what"],
        "recipe": found["recipe"],
        "speedup": found["over_eager"]["ratio"],
        "ci95": found["over_eager"]["ci95"],
        "quality": cosine
        if not quality
        else _quality(quality["name"], quality["before"], {"quality": quality["after"]}),
    }
