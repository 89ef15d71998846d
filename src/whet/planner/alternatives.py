"""Say why other layouts do not fit: the usual ways to divide a training, what was looked at, and what would fit."""

from collections import Counter
from dataclasses import replace

from whet.errors import OptionError
from whet.planner.answer import PART_NAMES, Alternative, Misfits
from whet.planner.layout import Layout
from whet.planner.prediction import MemoryParts
from whet.planner.search import Candidate, Predictor, Search
from whet.planner.space import Degrees, Space
from whet.planner.words import cluster_words, words_of
from whet.ui.figures import num_bytes

_MOST_CHIPS = 65_536


def alternatives_of(search: Search) -> tuple[Alternative, ...]:
    """Return the usual ways to divide a training that are possible here, whether they fit or not."""
    space = search.space
    there, layouts = space.degrees, dict[str, Layout | None]()
    alone = next((one for one in there if one.tensor * one.pipeline * one.context == 1), None)
    if alone is not None and alone.data > 1:
        for stage, name in enumerate(("data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3 (FSDP)")):
            shard = alone.data if stage else 1
            layouts[name] = space.layout(alone, sharding=(stage, shard))
            if stage in (0, 3):
                layouts[f"{name}, all computed again"] = space.layout(alone, sharding=(stage, shard), recompute="full")
    for name, kind in (("tensor parallel", "tensor"), ("pipeline", "pipeline")):
        degrees = _most(there, kind)
        if degrees is not None:
            layouts[f"{name} {getattr(degrees, kind)}"] = space.layout(
                degrees,
                sharding=min(space.shardings(degrees)),
                virtual_stages=space.virtual_stages(degrees)[0],
            )
    return tuple(alternative(name, search.candidate(layout)) for name, layout in layouts.items() if layout is not None)


def _most(there: tuple[Degrees, ...], name: str) -> Degrees | None:
    """Return the degrees with the most of one kind, and of no other but data."""
    others = {"tensor", "pipeline", "context"} - {name}
    found = [one for one in there if getattr(one, name) > 1 and all(getattr(one, other) == 1 for other in others)]
    return max(found, key=lambda one: int(getattr(one, name)), default=None)


def alternative(name: str, one: Candidate) -> Alternative:
    part, part_bytes = largest_part(one.prediction.memory)
    return Alternative(
        name=name,
        layout=one.layout,
        memory_bytes=one.prediction.memory_total.value,
        lacks=one.lacks,
        part=part,
        part_bytes=part_bytes,
        step_s=one.prediction.step_s,
    )


def misfits_of(search: Search) -> Misfits:
    """Count the layouts that were looked at and do not fit, by the largest part of their memory."""
    over = [one for one in search.seen.values() if not one.fits]
    counted = Counter(largest_part(one.prediction.memory)[0] for one in over)
    nearest = min(over, key=lambda one: one.key, default=None)
    return Misfits(
        looked_at=len(search.seen),
        by_part=dict(counted.most_common()),
        nearest=None if nearest is None else alternative(words_of(nearest.layout), nearest),
    )


def largest_part(memory: MemoryParts) -> tuple[str, float]:
    """Return the largest part of a memory, with its bytes."""
    parts = memory.by_name
    name = max(parts, key=lambda one: parts[one])
    return name, parts[name]


def nothing_fits(search: Search, nearest: Candidate, predict: Predictor) -> OptionError:
    """Return the error for a model of which no layout fits: what is nearest, and what would make it fit."""
    space, memory = search.space, nearest.prediction.memory
    part, part_bytes = largest_part(memory)
    lacks = num_bytes(nearest.lacks)
    told = (
        f"no layout of {space.shape.name} fits {cluster_words(space.cluster)}: the nearest, "
        f"{words_of(nearest.layout)}, needs {num_bytes(memory.total)} a GPU, {lacks} more than the "
        f"{num_bytes(search.usable_bytes)} that can be used; its largest part is {PART_NAMES[part]}, "
        f"{num_bytes(part_bytes)}"
    )
    number = _enough(space, predict)
    advice = f"--gpus {number} is enough" if number else "no number of these GPUs is enough with this batch"
    return OptionError(f"{told}; {advice}")


def _enough(space: Space, predict: Predictor) -> int | None:
    """Return the smallest doubling of the chips with which something fits; None where there is none."""
    cluster, number = space.cluster, space.cluster.num_chips
    while cluster.between is not None and number < _MOST_CHIPS:
        number *= 2
        if number > cluster.chips_per_node and number % cluster.chips_per_node:
            continue
        found = Search(replace(space, cluster=cluster.with_chips(number)), predict).ranked(1)
        if found and found[0].fits:
            return number
    return None
