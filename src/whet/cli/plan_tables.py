"""Show on a terminal what whet plan predicts, within 80 columns."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.planner.answer import PART_NAMES, Alternative, PlanAnswer, RankedPlan, Scaling
from whet.planner.memory_trace import MemoryTrace
from whet.planner.serving_answer import ServingAnswer
from whet.planner.words import (
    alternative_words,
    cluster_words,
    cost_words,
    count_words,
    dollars,
    interval_words,
    long_duration,
    memory_words,
    scaling_words,
    sent_words,
    step_words,
    trace_words,
    words_of,
)
from whet.ui.figures import counted, digits, duration, num_bytes, percent
from whet.ui.terminal_tables import plain_table


def show_plan(console: Console, answer: PlanAnswer) -> None:
    """Show the plans, what the best one takes, why others do not fit, how it scales, and what was assumed."""
    work, best = answer.work, answer.best
    head = f"{answer.model.name} on {cluster_words(answer.cluster)}"
    console.print(Text(head, "bold"))
    _dim(console, f"{work.global_batch_size:,} rows of {work.sequence_length:,} tokens a step ({work.tokens:,} tokens)")
    for line in answer.notices:
        console.print(Text(line, "yellow"))
    console.print()
    console.print(_plans_table(answer))
    _dim(console, f"{answer.misfits.looked_at:,} of {answer.num_possible:,} possible layouts were predicted.")
    console.print()
    _show_best(console, answer, best)
    if answer.trace is not None:
        _show_trace(console, answer.trace, answer.usable_bytes)
    _show_others(console, answer)
    if answer.scaling is not None and len(answer.scaling.fixed) > 1:
        console.print()
        console.print(_scaling_table(answer.scaling))
        console.print(scaling_words(answer.scaling), highlight=False)
    _show_train(console, answer)
    _show_assumptions(console, answer.assumptions, answer.outside)


def _plans_table(answer: PlanAnswer) -> Table:
    table = plain_table()
    table.add_column("plan", ratio=1, min_width=24, overflow="fold")
    for name in ("step", "tokens/s", "MFU", "memory", "J/token"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in answer.plans:
        step = one.prediction.step_s
        cells = (
            Text(words_of(one.layout)),
            Text.assemble(duration(step.value), "\n", (_range(step.low, step.high), "dim")),
            Text(digits(one.tokens_per_s.value)),
            Text(percent(one.prediction.mfu)),
            Text.assemble(num_bytes(one.prediction.memory_total.value), ("\ntight" if one.is_tight else "", "yellow")),
            Text(digits(one.joules_per_token.value)),
        )
        table.add_row(*cells, style="bold" if one is answer.best else "")
    return table


def _show_best(console: Console, answer: PlanAnswer, best: RankedPlan) -> None:
    memory, step = best.prediction.memory, best.prediction.step
    rows = [
        ("memory", memory_words(memory)),
        ("", f"{interval_words(best.prediction.memory_total, num_bytes)} in all, of {num_bytes(answer.usable_bytes)}"),
        ("step", step_words(step)),
        ("waits", f"{duration(best.exposed_s)} of a step for messages; a GPU sends {sent_words(best)}"),
        ("operations", f"{digits(best.prediction.flops / 1e15)} PFLOP of the model a step"),
        ("cost", cost_words(best)),
    ]
    if answer.tokens is not None and best.time_s is not None:
        told = f"{count_words(answer.tokens)} tokens take {interval_words(best.time_s, long_duration)}"
        if best.dollars is not None:
            told += f", and {interval_words(best.dollars, dollars)}"
        rows.append(("training", told))
    console.print(_facts("the best plan", rows))


def _show_trace(console: Console, trace: MemoryTrace, usable_bytes: float) -> None:
    console.print()
    console.print(Text("memory of the best plan by a trace of one GPU", "bold"))
    if trace.why_not:
        _dim(console, f"all figures are formulas: {trace.why_not}")
    table = plain_table(("part",), ("take", "from", "trace", "formula", "off by"))
    for one in trace.parts:
        cells = num_bytes(one.traced), num_bytes(one.formula), percent(one.difference)
        table.add_row(PART_NAMES[one.name], num_bytes(one.best), one.source, *cells)
    whole = num_bytes(None if trace.why_not else trace.total)
    sums = num_bytes(trace.total), "", whole, num_bytes(trace.formula_total), percent(trace.difference)
    table.add_row("all", *sums, style="bold")
    console.print(table)
    console.print(trace_words(trace, usable_bytes), highlight=False)
    for line in trace.differs:
        _dim(console, f"- {line}")


def _show_others(console: Console, answer: PlanAnswer) -> None:
    others = list[tuple[str, str]]()
    for one in answer.alternatives:
        others.append((one.name, alternative_words(one)))
    nearest = answer.misfits.nearest
    if nearest is not None:
        by_part = ", ".join(f"{number} by {PART_NAMES[name]}" for name, number in answer.misfits.by_part.items())
        others.append(
            ("all looked at", f"{sum(answer.misfits.by_part.values())} do not fit, by their largest part: {by_part}")
        )
        others.append(("the nearest to fit", f"{nearest.name}: {_lack(nearest)}"))
    if others:
        console.print()
        console.print(_facts("other ways", others))


def _lack(one: Alternative) -> str:
    return f"lacks {num_bytes(one.lacks)} ({PART_NAMES[one.part]} {num_bytes(one.part_bytes)})"


def _scaling_table(scaling: Scaling) -> Table:
    table = plain_table()
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("best plan, batch as given", ratio=1, min_width=24, overflow="fold")
    for name in ("tokens/s", "MFU", "a GPU does"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in scaling.fixed:
        speed = None if one.tokens_per_s is None else one.tokens_per_s.value
        table.add_row(
            f"{one.chips:,}",
            words_of(one.layout) if one.layout else one.why,
            digits(speed),
            percent(one.mfu),
            percent(one.efficiency),
        )
    return table


def _show_train(console: Console, answer: PlanAnswer) -> None:
    """Show what whet train takes for the best plan that it runs, and why it does not run the best one."""
    console.print()
    best, chosen = answer.best, answer.runnable
    for why in best.train.missing:
        _dim(console, f"whet train does not run the best plan: {why}")
    if chosen is None:
        console.print("No plan that fits is one that whet train can run. The best plan as its tables would say it:")
        chosen = best
    elif chosen.layout != best.layout:
        step = interval_words(chosen.prediction.step_s, duration)
        console.print(
            f"The fastest that whet train runs: {words_of(chosen.layout)}; {step} a step. Its tables:", highlight=False
        )
    else:
        console.print("What whet train takes:")
    console.print(Text(chosen.train.toml), soft_wrap=True)
    if chosen.train.recipe:
        console.print(f"with a recipe of {' + '.join(chosen.train.recipe)}", highlight=False)
    for line in chosen.train.differs:
        _dim(console, line)
    console.print(Text(chosen.train.torchrun), soft_wrap=True)


def _show_assumptions(console: Console, assumptions: tuple[str, ...], outside: tuple[str, ...]) -> None:
    console.print()
    for line in outside:
        console.print(Text(f"outside of what was fitted: {line}; intervals are wider", "yellow"))
    _dim(console, "taken as given:")
    for line in assumptions:
        _dim(console, f"- {line}")


def show_serving(console: Console, answer: ServingAnswer) -> None:
    """Show the ways to serve within the limits, the cheapest first."""
    console.print(Text(f"{answer.model.name} on {answer.cluster.chip.name}", "bold"))
    _dim(
        console,
        f"{answer.rate:g} requests a second of {answer.prompt_tokens} + {answer.output_tokens} tokens, within "
        f"{answer.slo}",
    )
    console.print()
    table = plain_table((), ("replicas", "batch", "TTFT p95", "TPOT", "weights", "KV", "most/s", "$/M tokens"))
    for one in answer.plans:
        table.add_row(
            f"{one.replicas} x {one.tensor}",
            digits(one.batch),
            Text.assemble(duration(one.ttft_s.value), "\n", (_range(one.ttft_s.low, one.ttft_s.high), "dim")),
            Text.assemble(duration(one.tpot_s.value), "\n", (_range(one.tpot_s.low, one.tpot_s.high), "dim")),
            num_bytes(one.weight_bytes),
            num_bytes(one.kv_bytes),
            digits(one.most_rate * one.replicas),
            digits(one.dollars_per_million_tokens),
            style="bold" if one is answer.best else "",
        )
    console.print(table)
    best = answer.best
    where = f"{counted(best.replicas, 'replica')} of {counted(best.tensor, 'GPU')}"
    console.print(
        f"Best: {where}. Decoding is bound by {best.bound}; prompts take {percent(best.busy)} of the time; a token "
        f"takes {digits(best.joules_per_token)} J.",
        highlight=False,
    )
    for tensor, why in answer.refused.items():
        _dim(console, f"{counted(tensor, 'GPU')} a replica: {why}")
    _show_assumptions(console, answer.assumptions, answer.outside)


def _range(low: float, high: float) -> str:
    """Return an interval of seconds without its first unit: "4.1–5.7 s"."""
    return f"{duration(low, like=high).partition(' ')[0]}–{duration(high)}"


def _facts(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.title_style = "bold"
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, told in rows:
        table.add_row(name, Text(told))
    return table


def _dim(console: Console, text: str) -> None:
    console.print(Text(text, "dim"))
