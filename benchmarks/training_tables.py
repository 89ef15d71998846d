"""Write the tables of the benchmark scripts for training, and draw the ladder of techniques."""

import statistics
from collections.abc import Callable
from typing import Any

from context_tables import context_lines
from families_tables import family_lines
from families_training_table import training_lines
from operator_tables import loss_kernel_lines
from parallel_tables import parallel_lines, plan_lines
from recall_tables import memory_lines, recall_lines
from scan_tables import draft_lines, million_lines, model_lines, scan_lines
from signs_tables import signs_lines
from stream_tables import stream_lines

Lines = Callable[[dict[str, Any]], list[str]]
"""Returns a section's heading, then its lines."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 720, 360, 60, 44, 16


def ratio_with_interval(ratio: dict[str, Any], unit: str = "x") -> str:
    """Return a ratio with its interval, for a table."""
    low, high = ratio["ci95"]
    return f"**{ratio['ratio']:.2f}{unit}** ({low:.2f}–{high:.2f})"


def plot_of(report: dict[str, Any]) -> str:
    """Return the path of the ladder's plot, as docs/results.md names it."""
    return f"results/train_ladder.{report['machine']['id']}.svg"


def _latentwire(report: dict[str, Any]) -> list[str]:
    lines = [
        "## A slow training code base: audited, then tuned",
        f"Steps of examples/latentwire; whet's goal is {report['goal']:g}x over the slow script at the same loss. "
        f"The recipe: {report['recipe']}. {report['diagnosis']} {report['losses']}".strip(),
        "",
        "| what | before | after | times as fast (95%) | training loss |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        times = f"{row['old_ms']:.0f} ms | {row['new_ms']:.0f} ms"
        lines.append(f"| {row['what']} | {times} | {ratio_with_interval(row)} | {row['loss']} |")
    return lines


def _loss_kernel(report: dict[str, Any]) -> list[str]:
    return ["## The last layer and its cross-entropy", *loss_kernel_lines(report, ratio_with_interval)]


def _compression(report: dict[str, Any]) -> list[str]:
    goal = report["goal"]
    lines = [
        "## Pruned and trained further",
        f"The goal is {goal['flops']:.0%} of the operations at most, at a drop in quality of {goal['drop']:.0%} at "
        "most. Both models are timed as they are, without other techniques.",
        "",
        "| model | operations | parameters | size on disk | quality | times as fast (95%) | goal | recipe |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        share = row["flops"][1] / row["flops"][0]
        is_reached = share <= goal["flops"] and row["drop"] <= goal["drop"]
        lines.append(
            f"| {row['target']} | {row['flops'][0] / 1e6:,.0f} → {row['flops'][1] / 1e6:,.0f} million ({share:.0%}) "
            f"| {row['parameters'][0] / 1e6:.2f} → {row['parameters'][1] / 1e6:.2f} million "
            f"| {row['bytes'][0] / 1e6:.1f} → {row['bytes'][1] / 1e6:.1f} MB "
            f"| {row['quality_name']}: {row['quality'][0]:.4f} → {row['quality'][1]:.4f} (drop {row['drop']:.1%}) "
            f"| {ratio_with_interval(row)} | {'reached' if is_reached else 'missed'} | {row['recipe']} |"
        )
    return lines


def _packed_attention(report: dict[str, Any]) -> list[str]:
    lines = [
        "## Attention of packed rows",
        f"Forward and backward of {report['layers']} layers with {report['heads']} heads of {report['width']} numbers, "
        "for one row. The share is that of the dense mask's products which lie within documents, at or before a token.",
        "",
        "| dtype, tokens, documents | share | attention | ms | over the dense mask (95%) |",
        "|---|---|---|---|---|",
    ]
    for row in report["cases"]:
        for name, ms in row["ms"].items():
            over = "" if name not in row["over"] else ratio_with_interval(row["over"][name])
            lines.append(f"| {row['case'].replace('-', ', ')} | {row['share']:.1%} | {name} | {ms:,.1f} | {over} |")
    return lines


def _train_peers(report: dict[str, Any]) -> list[str]:
    shape = report["shape"]
    recipes = "; ".join(f"{name}: {recipe}" for name, recipe in report["recipes"].items())
    lines = [
        "## Training, beside loops written by hand and other trainers",
        f"A Llama of {shape['layers']} layers, {shape['hidden']} wide, with a vocabulary of {shape['vocabulary']:,}, "
        f"is trained on batches of {shape['rows']} x {shape['tokens']} tokens. Memory is the peak of a step above what "
        f"was resident after the imports. The recipes that `whet tune` found: {recipes}.",
        "",
        "| contender | tokens/s | ms a step | peak, MB |",
        "|---|---|---|---|",
    ]
    rows = sorted(report["contenders"].items(), key=lambda row: row[1]["step_s"])
    lines += [_speed_row(f"**{name}**" if name.startswith("whet") else name, row) for name, row in rows]
    lines += ["", "| whet's goal | of | ratio (95%) | goal | |", "|---|---|---|---|---|"]
    for claim in report["claims"]:
        of, ratio = " / ".join(claim["of"]), ratio_with_interval(claim, "")
        lines.append(f"| {claim['what']} | {of} | {ratio} | {claim['goal']} | {claim['verdict']} |")
    if not report["ladder"]:
        return lines
    lines += ["", "One technique on top of the other:", ""]
    lines += ["| recipe | tokens/s | ms a step | peak, MB |", "|---|---|---|---|"]
    lines += [_speed_row(rung["what"], rung) for rung in report["ladder"]]
    return [*lines, "", f"![tokens a second and memory of each rung]({plot_of(report)})"]


def _speed_row(name: str, row: dict[str, Any]) -> str:
    if "step_s" not in row:
        return f"| {name} | – | – | does not run |"
    return f"| {name} | {row['tokens_per_s']:,.0f} | {1e3 * row['step_s']:.0f} | {row['peak_bytes'] / 1e6:,.0f} |"


def _prepare_overhead(report: dict[str, Any]) -> list[str]:
    lines = [
        "## What whet.prepare costs a step",
        "Microseconds that a step takes longer than in the same loop without whet; the goal is "
        f"{report['aim_us']:g} at most. `benchmarks/prepare_overhead.py` says what the variants are.",
        "",
        "| variant | added (95%) | plain step | |",
        "|---|---|---|---|",
    ]
    for row in report["variants"]:
        low, high = row["ci95"]
        verdict = "reached" if high <= report["aim_us"] else "missed" if low > report["aim_us"] else "open"
        added = f"**{row['added_us']:.1f}** ({low:.1f}–{high:.1f})"
        lines.append(f"| {row['variant']} | {added} | {row['plain_us']:.0f} | {verdict} |")
    return lines


def _loader(report: dict[str, Any]) -> list[str]:
    waits = f", each of which waits {report['wait_ms']:g} ms" if report["wait_ms"] else ""
    lines = [
        f"## A training that waits for its photographs{waits}",
        "The goal is 95% of the speed of the computation alone, or as far as the cores allow.",
        *_what_cores_allow(report),
        "",
        "| loop | ms a step | times the original's speed (95%) | share of the computation's speed (95%) |",
        "|---|---|---|---|",
    ]
    for row in report["contenders"]:
        told = [ratio_with_interval(row["over_original"]), ratio_with_interval(row["share_of_compute"], "")]
        lines.append(f"| {row['contender']} | {row['step_ms']:.1f} | {' | '.join(told)} |")
    return lines


def _what_cores_allow(report: dict[str, Any]) -> list[str]:
    """Return the limits of the machine, where they were measured."""
    if (limits := report.get("limits")) is None:
        return []
    alone = next(row["step_ms"] for row in report["contenders"] if row["contender"] == "computation alone")
    return [
        f"However the work is divided among the cores, a step takes {limits['cores_ms']:.1f} ms at least, which is "
        f"{alone / limits['cores_ms']:.2f} of that speed. One worker beside one thread for the computation takes "
        f"{limits['beside_ms']:.1f} ms at least."
    ]


def _foreign_scripts(report: dict[str, Any]) -> list[str]:
    return [
        "## Training scripts written by others, tuned from outside",
        "No line of these scripts was changed: `whet tune -- python SCRIPT ARGS`.",
        "",
        "| script | recipe | speedup (95%) | steps a second, before and after | training loss | verdict |",
        "|---|---|---|---|---|---|",
        *report["rows"].values(),
    ]


def training_summary(peers: dict[str, Any], scripts: dict[str, Any] | None) -> list[str]:
    """Return the README's lines on training: beside peers, and scripts of others that stay as they are.

    Args:
        peers: What train_peers.py wrote.
        scripts: What foreign_scripts.py wrote; None where it was not run.
    """
    shape, chip = peers["shape"], peers["machine"]["chip"]
    lines = [
        f"A Llama of {shape['layers']} layers, {shape['hidden']} wide, in batches of {shape['rows']} x "
        f"{shape['tokens']} tokens, on {chip}, {peers['machine']['cores']} cores. `whet tune` found: "
        f"{peers['recipes']['whet']}.",
        "",
        "| beside | times as fast (95%) |",
        "|---|---|",
    ]
    claims = [claim for claim in peers["claims"] if claim["of"][1] == "whet" and "memory" not in claim["what"]]
    lines += [f"| {claim['what']} ({claim['of'][0]}) | {ratio_with_interval(claim)} |" for claim in claims]
    if scripts is None:
        return lines
    chip = scripts["machine"]["chip"]
    told = f"Scripts of others, not a line changed, on {chip}, {scripts['machine']['cores']} cores:"
    lines += ["", told, "", "| script | recipe | times as fast (95%) | what was proved |", "|---|---|---|---|"]
    for row in scripts["rows"].values():
        name, recipe, speedup, _, loss, verdict = [cell.strip() for cell in row.strip("| ").split("|")][:6]
        told = verdict if recipe == "original" else loss
        lines.append(f"| {name} | {recipe} | {speedup} | {told} |")
    return lines


def _tokenising(report: dict[str, Any]) -> list[str]:
    again = report["again"]
    lines = [
        "## Turning text into tokens",
        f"The goal is {report['goal']:g} times the speed of the tokenizers library's `encode_batch` at least, which is "
        "given the text in memory; whet reads a file, hashes it, and writes a store. A fresh process finds "
        f"{again['num_bytes'] / 1e9:.1f} GB of tokens again in **{1e3 * again['seconds']:.0f} ms**.",
        "",
        "| text | encode_batch, M tokens/s | whet, M tokens/s | times as fast (95%) | |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["ci95"]
        verdict = "reached" if low >= report["goal"] else "missed" if high < report["goal"] else "open"
        speeds = " | ".join(f"{row['tokens_per_s'][name] / 1e6:.2f}" for name in ("encode_batch", "whet"))
        lines.append(f"| {row['what']} | {speeds} | {ratio_with_interval(row)} | {verdict} |")
    return lines


def _checkpointing(report: dict[str, Any]) -> list[str]:
    lines = [
        "## Saving checkpoints",
        "For how long a training stands still at a save, beside the bare copy of its tensors to host memory; the goal "
        f"is {report['aim']:.0%} of a step beyond the copy at most. The last column is what the steps lose afterwards, "
        "while the thread hashes and writes on the same cores. `benchmarks/checkpointing.py` says how it is measured.",
        "",
        "| state | step | copy | save | beyond the copy, of a step (95%) | | written in | lost meanwhile (95%) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["added_share"]["ci95"]
        verdict = "reached" if high <= report["aim"] else "missed" if low > report["aim"] else "open"
        times = " | ".join(f"{row[name]:.1f} ms" for name in ("step_ms", "copy_ms", "save_ms"))
        lost = row["lost_s"]
        lines.append(
            f"| {row['state_bytes'] / 1e6:,.0f} MB, {row['num_tensors']} tensors | {times} "
            f"| **{row['added_share']['mean']:.2%}** ({low:.2%} to {high:.2%}) | {verdict} | {row['written_s']:.2f} s "
            f"| {lost['mean']:.2f} s ({lost['ci95'][0]:.2f} to {lost['ci95'][1]:.2f}) |"
        )
    return lines


def _train_loop(report: dict[str, Any]) -> list[str]:
    rates = report["tokens_per_s"]
    lines = [
        "## The loop of whet train",
        "Tokens a second of `whet train` with data from a file, log, TensorBoard, live page, and a checkpoint every "
        f"{report['save_interval']} steps, beside a bare loop around transformers' model with the same recipe: "
        f"{report['recipe']}. The goal is {report['aim']:g} at least.",
        "",
        "| | tokens/s, median | whet train over the bare loop (95%) | |",
        "|---|---|---|---|",
    ]
    for name, found in rates.items():
        cells = f"{ratio_with_interval(report)} | {report['verdict']}" if name == "whet train" else " | "
        lines.append(f"| {name} | {statistics.median(found):,.0f} | {cells} |")
    return lines


def _tinyshakespeare(report: dict[str, Any]) -> list[str]:
    lines = [
        "## Shakespeare, character by character",
        f"`whet train examples/tinyshakespeare.toml` ends after {report['seconds'] / 60:.1f} minutes with a held-out "
        f"loss of **{report['held_out_loss']:.4f}** nats a character; at most {report['goal']:.2f} within 15 minutes "
        f"is {report['verdict']}.",
        "",
        "| step | tokens | minutes | training loss | held-out loss |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['step']} | {row['tokens']:,} | {row['seconds'] / 60:.1f} | {row['loss']:.4f} "
        f"| {row['held_out_loss']:.4f} |"
        for row in report["scores"]
    ]
    return lines


SECTIONS: dict[str, Lines] = {
    "train_peers": _train_peers,
    "loss_kernel": _loss_kernel,
    "packed_attention": _packed_attention,
    "loader": _loader,
    "prepare_overhead": _prepare_overhead,
    "checkpointing": _checkpointing,
    "train_loop": _train_loop,
    "tinyshakespeare": _tinyshakespeare,
    "foreign_scripts": _foreign_scripts,
    "latentwire": _latentwire,
    "tokenising": _tokenising,
    "compression": _compression,
    "parallel": parallel_lines,
    "plan_here": plan_lines,
    "selective_scan": scan_lines,
    "selective_models": model_lines,
    "selective_drafts": draft_lines,
    "families_training": training_lines,
    "long_context": context_lines,
    "recall": recall_lines,
    "memory_table": memory_lines,
    "families_peers": family_lines,
    "million_tokens": million_lines,
    "signs_stream": signs_lines,
    "stream_peers": stream_lines,
}
"""Hold the section of each file of docs/results about training, its operators, families of models and streams."""


def ladder_plot(report: dict[str, Any]) -> str:
    """Return an SVG picture of a ladder: memory across, tokens a second upwards, a line from rung to rung."""
    rungs = [rung for rung in report["ladder"] if "step_s" in rung]
    most_bytes = 1.05 * max(rung["peak_bytes"] for rung in rungs)
    most_speed = 1.1 * max(rung["tokens_per_s"] for rung in rungs)
    right, foot = _WIDTH - _EDGE, _HEIGHT - _BOTTOM

    def place(num_bytes: float, speed: float) -> tuple[float, float]:
        return _LEFT + (right - _LEFT) * num_bytes / most_bytes, foot - (foot - _EDGE) * speed / most_speed

    points = [place(rung["peak_bytes"], rung["tokens_per_s"]) for rung in rungs]
    drawn = [
        _line([(_LEFT, _EDGE), (_LEFT, foot), (right, foot)], "#888"),
        _line(points, "#4878a8"),
        _text(right, _HEIGHT - 8, "peak memory of a step, MB", "end"),
        _text(_LEFT + 6, _EDGE + 8, "tokens a second"),
    ]
    for share in (0.25, 0.5, 0.75, 1.0):
        x, y = place(share * most_bytes, share * most_speed)
        drawn.append(_text(x, foot + 16, f"{share * most_bytes / 1e6:,.0f}", "middle"))
        drawn.append(_text(_LEFT - 6, y + 4, f"{share * most_speed:,.0f}", "end"))
    for number, ((x, y), rung) in enumerate(zip(points, rungs, strict=True)):
        is_right = x > 0.6 * _WIDTH
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#4878a8"/>')
        drawn.append(
            _text(x + (-8 if is_right else 8), y + (14 if number % 2 else -6), rung["what"], "end" if is_right else "")
        )
    style = 'font-family="sans-serif" font-size="12" fill="#555"'
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg {box} {style}><rect width="100%" height="100%" fill="#fff"/>{"".join(drawn)}</svg>\n'


def _line(points: list[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor or "start"}">{text}</text>'
