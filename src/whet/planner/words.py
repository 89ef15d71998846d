"""Say plans in words: layouts, clusters, intervals, costs, and where scaling breaks."""

from collections.abc import Callable

from whet.planner.answer import PART_NAMES, STEP_NAMES, Alternative, RankedPlan, Scaling
from whet.planner.cluster import Cluster
from whet.planner.layout import Layout
from whet.planner.memory_trace import MemoryTrace
from whet.planner.prediction import Interval, MemoryParts, StepParts
from whet.ui.figures import DASH, counted, digits, duration, num_bytes

_DAY_S, _HOUR_S, _YEAR_DAYS = 86_400.0, 3600.0, 365.25
_AGAIN = {"selective": ["attention computed again"], "operators": ["operators computed again"]}
_AGAIN |= {"none": [], "full": ["all computed again"]}


def words_of(layout: Layout) -> str:
    """Return a layout in words, as "tensor 8, pipeline 4, data 16 with ZeRO 1, 2 rows at a time"."""
    degrees = [
        f"{name} {getattr(layout, name)}"
        for name in ("tensor", "pipeline", "context", "expert")
        if getattr(layout, name) > 1
    ]
    if layout.virtual_stages > 1:
        degrees.append(f"{layout.virtual_stages} stages a GPU")
    data = f"data {layout.data}"
    if layout.zero_stage and layout.data > 1:
        groups = f" in groups of {layout.shard}" if layout.replicate > 1 else ""
        data += f" with ZeRO {layout.zero_stage}{groups}"
    rows = f"{counted(layout.micro_batch_size, 'row')} at a time"
    recompute = _AGAIN[layout.recompute]
    return ", ".join([*degrees, data, rows, *recompute, *(["state in host memory"] if layout.offload else [])])


def cluster_words(cluster: Cluster) -> str:
    return f"{cluster.num_chips:,} x {cluster.chip.name} ({num_bytes(cluster.chip.memory_bytes)})"


def interval_words(one: Interval, words: Callable[[float], str]) -> str:
    """Return a figure with its interval, as "4.88 s (4.1 s to 5.7 s)"."""
    return f"{words(one.value)} ({words(one.low)} to {words(one.high)})"


def memory_words(memory: MemoryParts) -> str:
    """Return what a chip's memory is made of."""
    return ", ".join(f"{num_bytes(size)} {PART_NAMES[name]}" for name, size in memory.by_name.items() if size > 0)


def step_words(step: StepParts) -> str:
    """Return what the time of a step goes to."""
    return ", ".join(f"{duration(value)} {STEP_NAMES[name]}" for name, value in step.by_name.items() if value > 0)


def count_words(number: float) -> str:
    """Format a large number in words: 15 trillion, 300 billion."""
    for name, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.4g} {name}"
    return f"{number:,.0f}"


def dollars(value: float) -> str:
    return f"${digits(value)}"


def long_duration(seconds: float) -> str:
    """Format seconds as hours, days or years, as the length of a training."""
    if seconds < 2 * _DAY_S:
        return duration(seconds) if seconds < _HOUR_S else f"{digits(seconds / _HOUR_S)} h"
    days = seconds / _DAY_S
    return f"{digits(days)} days" if days < 2 * _YEAR_DAYS else f"{digits(days / _YEAR_DAYS)} years"


def sent_words(one: RankedPlan) -> str:
    """Return what a chip sends in a step, by what for."""
    sent = {name: size for name, size in one.prediction.sent.items() if size > 0}
    return ", ".join(f"{num_bytes(size)} for {name}" for name, size in sent.items()) or "nothing"


def cost_words(one: RankedPlan) -> str:
    """Return the energy and the dollars of a token."""
    energy = interval_words(one.joules_per_token, lambda value: f"{digits(value)} J")
    price = one.dollars_per_million_tokens
    if price is None:
        return f"{energy} a token; --price says what it costs"
    return f"{energy} a token, {interval_words(price, dollars)} a million tokens"


def trace_words(trace: MemoryTrace, usable_bytes: float) -> str:
    """Return what was traced, when the rank holds most, and what it lacks of the memory that may be used."""
    if trace.why_not:
        return "Nothing was traced."
    when = "in the update" if trace.phase == "update" else f"in {trace.phase}"
    lacks = trace.total - usable_bytes
    fits = f" As traced it does not fit: it needs {num_bytes(lacks)} too much." if lacks > 0 else ""
    return (
        f"Traced in {duration(trace.seconds)}: one GPU, of {trace.ranks:,}, with {words_of(trace.layout)}. It "
        f"holds most {when}.{fits}"
    )


def alternative_words(one: Alternative) -> str:
    """Return whether a usual way to divide a training fits, and why not."""
    if one.fits:
        return f"fits with {num_bytes(one.memory_bytes)}; {interval_words(one.step_s, duration)} a step"
    return (
        f"needs {num_bytes(one.memory_bytes)} a GPU, {num_bytes(one.lacks)} too much; its largest part is "
        f"{PART_NAMES[one.part]}, {num_bytes(one.part_bytes)}"
    )


def scaling_words(scaling: Scaling) -> str:
    """Return where scaling breaks with the batch as it is, and why."""
    last = scaling.fixed[-1]
    if scaling.breaks_at is not None:
        return f"It breaks at {scaling.breaks_at:,} GPUs: {scaling.why}."
    if scaling.why:
        return f"It does not scale: {scaling.why}."
    share = DASH if last.efficiency is None else f"{last.efficiency:.0%}"
    return f"It does not break up to {last.chips:,} GPUs, where a GPU does {share} of what it does on the fewest."
