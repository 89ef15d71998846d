"""The tables of results about serving: ranks, tuned artefacts, replicas, shared weights."""

from collections.abc import Callable
from typing import Any

Report = dict[str, Any]


def _tensor_parallel(report: Report) -> list[str]:
    lines = [
        "## One model on two processes",
        "Two processes with one thread each compute each step together (`--tensor-parallel-size 2`), beside one "
        f"process with two threads; whet's goal is a ratio of at least {report['target']}. *Waited* is the part of the "
        "time in which the first process waited for the other one, or added what both have.",
        "",
        "| weights | case | one process, tok/s | two processes, tok/s | ratio (95%) | waited |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["ratio_ci95"]
        lines.append(
            f"| {row['weights']} | {row['case']} | {row['one_process']:,.1f} | {row['two_processes']:,.1f} "
            f"| **{row['ratio']:.2f}x** ({low:.2f}–{high:.2f}) | {row['waited']:.1%} |"
        )
    return lines


def _artefacts(report: Report) -> list[str]:
    costs = "; ".join(f"{cost:.0f} µs with {count} at a time" for count, cost in report["batcher_us"].items())
    rates, many = report["per_second"], report["clients"]
    return [
        "## Serving what was tuned",
        f"The batcher's own time per request: {costs} (whet's goal is {report['target_us']:.0f} µs). Two threads that "
        f"wake each other in turn take {report['hand_over_us']:.0f} µs: one request at a time costs at least that.",
        "",
        f"docs-encoder over HTTP, in turns: 1 client {rates['one']:.0f} requests/s, {many} clients "
        f"{rates['many']:.0f}/s, **{report['ratio']:.2f}x** (whet's goal is {report['target_ratio']}x).",
    ]


def _replicas(report: Report) -> list[str]:
    rates, added, hits = report["throughput"], report["proxy"], report["prefix_hits"]
    speeds, answered = rates["tokens_per_s"], report["answered"]
    lines = [
        "## Several replicas",
        f"{report['model']}, {report['clients']} clients with prompts of their own, in turns: two replicas "
        f"{speeds['replicas']:.0f} tokens/s, one server with all cores {speeds['one']:.0f} tokens/s, "
        f"**{rates['ratio']:.2f}x** ({min(rates['ratios']):.2f} to {max(rates['ratios']):.2f} in single rounds).",
        "",
        f"What the proxy adds (whet's goal is at most {report['target_ms']:g} ms with 16 clients). With 16 clients the "
        "two replicas have all cores, and the proxy takes what it computes from them.",
        "",
        "| clients | answers | replicas themselves, p50 / p99 | through the proxy, p50 / p99 | added, p50 / p99 "
        "| the proxy computes |",
        "|---|---|---|---|---|---|",
    ]
    for number, kinds in added.items():
        for kind, name in (("whole", "whole"), ("stream", "streams, to the first event")):
            row = kinds[kind]
            cells = [
                f"{row[side]['p50_ms']:.2f} / {row[side]['p99_ms']:.2f} ms" for side in ("direct", "proxy", "added")
            ]
            lines.append(f"| {number} | {name} | {' | '.join(cells)} | {row['computed_ms']:.2f} ms |")
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


def _shared_weights(report: Report) -> list[str]:
    megabytes = report["weight_bytes"] / 1e6
    loads, memory = report["load_s"], report["two_processes_bytes"]
    lines = [
        "## Shared weights",
        f"A step of one token, of a decoder whose int8 matrices take {megabytes:,.0f} MB, by where they lie. A ratio "
        "above 1 is faster than private memory.",
        "",
        "| weights lie in | ms | ratio (95%) |",
        "|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["ci95"]
        lines.append(f"| {row['name']} | {row['ms']:.2f} | {row['ratio']:.3f}x ({low:.3f}–{high:.3f}) |")
    lines += [
        "",
        f"Two processes hold {memory['private'] / 1e6:,.0f} MB with weights of their own, and "
        f"**{memory['shared'] / 1e6:,.0f} MB** with shared ones (the sum of their PSS). Loading takes "
        f"{loads['private, second']:.1f} s with weights of its own, {loads['shared, first']:.1f} s for the process "
        f"that packs the shared ones, and **{loads['shared, second']:.1f} s** for the next one.",
    ]
    return lines


def _on_ray(report: Report) -> list[str]:
    lost = report["lost"]
    lines = [
        "## Replicas on Ray Serve",
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


SERVING: dict[str, Callable[[Report], list[str]]] = {
    "serve_tensor_parallel": _tensor_parallel,
    "serve_artefacts": _artefacts,
    "serve_replicas": _replicas,
    "shared_weights": _shared_weights,
    "serve_ray": _on_ray,
}
