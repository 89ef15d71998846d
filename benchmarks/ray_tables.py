"""The table of what Ray Serve costs, and what became of requests meanwhile: benchmarks/serve_ray.py."""

from typing import Any


def ray_lines(report: dict[str, Any]) -> list[str]:
    lost = report["lost"]
    lines = [
        "One token of docs-gpt with one thread, by 1 client and by 16 at a time, and the time from one token of a "
        "stream to the next:",
        "",
        "| served by | 1 client, p50 / p99 | 16 clients, p50 / p99 | token to token |",
        "|---|---|---|---|",
    ]
    for name, costs in report["costs"].items():
        cells = [
            f"{costs[f'clients_{count}']['p50_ms']:.1f} / {costs[f'clients_{count}']['p99_ms']:.1f} ms"
            for count in (1, 16)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {costs['token_gap_ms']:.2f} ms |")
    return [
        *lines,
        "",
        f"{lost['requests']} requests at {lost['rate_per_s']:g} per second, while a replica was killed, then a node, "
        f"and then all replicas were replaced: **{lost['answered']} answered**, {lost['cut']} streams that had begun "
        f"ended with an error, {lost['other']} lost. {lost['asked_again']} were asked again of another replica.",
    ]
