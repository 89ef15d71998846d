"""Tables of what several replicas gain and cost: benchmarks/serve_replicas.py."""

from typing import Any


def replica_lines(report: dict[str, Any]) -> list[str]:
    rates, added, hits = report["throughput"], report["proxy"], report["prefix_hits"]
    speeds, answered = rates["tokens_per_s"], report["answered"]
    lines = [
        f"{report['model']}, {report['clients']['throughput']} clients with prompts of their own, in turns: two "
        f"replicas {speeds['replicas']:.0f} tokens/s, one server with all cores {speeds['one']:.0f} tokens/s, "
        f"**{rates['ratio']:.2f}x** ({min(rates['ratios']):.2f} to {max(rates['ratios']):.2f} in single rounds).",
        "",
        f"The proxy's time, {report['clients']['proxy']} clients at a time (whet's goal is at most "
        f"{report['target_ms']:g} ms):",
        "",
        "| answers | replicas themselves, p50 / p99 | through the proxy, p50 / p99 | added, p50 / p99 |",
        "|---|---|---|---|",
    ]
    for kind, name in (("whole", "whole"), ("stream", "streams, to the first event")):
        cells = [
            f"{added[kind][side]['p50_ms']:.2f} / {added[kind][side]['p99_ms']:.2f} ms"
            for side in ("direct", "proxy", "added")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ended = ", ".join(f"{count} {how}" for how, count in sorted(answered["ended"].items()))
    return [
        *lines,
        "",
        f"Tokens of prompts that were found in a cache, conversations with common instructions: "
        f"**{hits['proxy']:.0%}** by the proxy, {hits['round_robin']:.0%} with the replicas in turn.",
        "",
        f"{answered['requests']} requests at {answered['per_second']:g} per second, with one replica killed and then "
        f"all replaced: {ended}.",
    ]
