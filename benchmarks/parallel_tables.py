"""The table of training on several processes, for docs/results."""

from typing import Any

from goals import verdict


def parallel_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading of the section, then its lines."""
    shape, aim = report["shape"], report["aim"]
    lines = [
        "## Training on several processes, beside loops written by hand",
        f"{report['ranks']} processes with one thread each train a Llama of {shape['num_hidden_layers']} layers, "
        f"{shape['hidden_size']} wide, on batches of {shape['rows']} x {shape['tokens']} tokens, by the plan of "
        "`whet.parallelize` and by hand on the same engines of PyTorch, in turn. The aim is a throughput of "
        f"{aim:g} of the hand-written one's at least. Beside them, one process makes the same steps with "
        f"{report['ranks']} threads. How far losses of the two loops differ is relative.",
        "",
        "| ZeRO | ms a step | tokens/s | of one process | of by hand (95%) | aim | losses differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["of_by_hand"]["ci95"]
        lines.append(
            f"| {row['stage']} | {row['step_ms']:,.0f} | {row['tokens_per_s']:,.0f} | {row['of_one_process']:.2f} "
            f"| **{row['of_by_hand']['ratio']:.3f}** ({low:.3f}–{high:.3f}) | {verdict(low, high, aim)} "
            f"| {row['loss_differs']:.0e} |"
        )
    lines += [
        "",
        "What each process holds of weights, gradients and the optimiser's state, counted by tensors: what it keeps "
        "after a step, the most within it, and what the table of ZeRO says (Rajbhandari et al., 2020). FSDP2, which "
        "stages 2 and 3 use, keeps parameters divided between steps in stage 2 too. For a step it gathers them: all in "
        "stage 2, and in stage 3 a block at a time.",
        "",
        "| ZeRO | kept, MB | most in a step, MB | by the table, MB |",
        "|---|---|---|---|",
    ]
    for row in report["rows"]:
        sizes = (row[name] for name in ("kept_bytes", "most_bytes", "table_bytes"))
        lines.append(f"| {row['stage']} | {' | '.join(f'{size / 1e6:,.1f}' for size in sizes)} |")
    return lines


def plan_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        "## What `whet plan` predicts of this machine",
        "Processes with one thread each train a small decoder by `whet.parallelize`, in float32. *Memory* is the peak "
        "of one process beside what it held before it made the model, where malloc returns what is freed "
        "(`MALLOC_MMAP_THRESHOLD_=65536`); *kept* is the same as glibc's malloc does by itself. The prediction knows "
        f"what `whet limits --links` measured, and nothing of the run. whet's goal is within {report['target']:.0%}.",
        "",
        "| processes | ZeRO | step | predicted | off | memory | kept | predicted | off |",
        "|---" * 9 + "|",
    ]
    for row in report["rows"]:
        times = ["", "", ""]
        if "step_s" in row:
            seconds = (row["step_s"], row["predicted_step_s"]["value"])
            times = [*(f"{1e3 * one:.0f} ms" for one in seconds), f"{row['step_differs']:+.0%}"]
        sizes = (row["peak_bytes"], row["kept_bytes"], row["predicted_bytes"]["value"])
        cells = [str(row["ranks"]), str(row["stage"]), *times, *(f"{one / 1e6:.0f} MB" for one in sizes)]
        lines.append("| " + " | ".join([*cells, f"**{row['memory_differs']:+.0%}**"]) + " |")
    return lines
