"""The table of native_peers.py."""

from typing import Any

from goals import verdict
from training_tables import ratio_with_interval

_WHET = "whet native int8"


def native_lines(report: dict[str, Any]) -> list[str]:
    """Return the section: its heading, then its lines."""
    lines = [
        f"## whet's own kernels beside the dedicated runtimes, on {report['machine']['chip']}",
        "Weights are random, all models int8. Each contender is loaded from its files in a fresh process. *Load* is",
        "the time to read them and answer once, without imports; *memory* the peak of the whole process, torch",
        "included; *cosine* that of the worst row with the float32 model.",
        "",
        "| model | contender | latency | load | memory | files | cosine | over the best peer (95%) | aim |",
        "|---" * 9 + "|",
    ]
    for row in report["models"]:
        for name, found in row["contenders"].items():
            beside = ratio_with_interval(row["over_best_peer"]) if name == _WHET else ""
            aim = _aim(row) if name == _WHET else ""
            lines.append(
                f"| {row['what']} | {name} | {found['latency_ms']:.2f} ms | {found['load_s']:.2f} s "
                f"| {found['peak_bytes'] / 1e6:.0f} MB | {found['size_bytes'] / 1e6:.1f} MB | {found['cosine']:.5f} "
                f"| {beside} | {aim} |"
            )
        lines += [f"| {row['what']} | {name} | refused: {why} | | | | | | |" for name, why in row["failed"].items()]
    return lines


def _aim(row: dict[str, Any]) -> str:
    low, high = row["over_best_peer"]["ci95"]
    return f"{row['goal']:g}x: {verdict(low, high, row['goal'])}"
