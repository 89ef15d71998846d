"""Choose the recipe to try next, as a pure function of the study, so that a resumed search continues the same plan.

1. torch.compile alone comes first, so that no gain is claimed over eager mode only. 2. Each technique is tried alone,
with the techniques that it needs, the largest bound first; of equal ones, those that run no compiler. One whose bound
is below the speedup already measured cannot win alone, and waits. If the objective is memory or size, the techniques
that save most come first, and those that save less than is saved already, or nothing, wait; where a step of a training
has to become faster too, what can make it so comes before them. 3. Each technique is added to the best recipe so far,
and to one of another backend that is nearly as fast. A recipe that is better but loses quality is tried again with
techniques that win quality back, one that is smaller but too slow with techniques that are faster, and one that needs
more memory than is allowed with techniques that save some: with as much of them as is needed, where that was measured.
4. The options of the best recipe are changed, one at a time. 5. What waited is tried. 6. Two techniques at once are
added to the best recipe. Then the sampler chooses.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from whet.core.recipe import Recipe, Step
from whet.techniques.technique import PRECISION
from whet.tuner.goal import Goal, ranked
from whet.tuner.records import TrialRecord
from whet.tuner.space import ApplicableTechnique, Space

_SCATTER = 1.15  # times as fast: what the screening of two recipes may differ by chance
_MOST_PAIRS = 10  # for each recipe that was the best, before the sampler chooses
_NUM_SLOW, _NUM_FASTER = 3, 4  # recipes that are too slow, and techniques that are tried to make each of them faster


def next_recipe(
    space: Space,
    records: Sequence[TrialRecord],
    goal: Goal,
    *,
    with_reference: bool = True,
    may_compile: bool = True,
) -> Recipe | None:
    """Return the next recipe that is worth a trial, or None where the plan has ended.

    Args:
        with_reference: Whether torch.compile alone comes first. Without it, the most promising technique does.
        may_compile: Whether there is time for recipes that run a compiler. Without it, they are named only where
            nothing else is left and no trial has succeeded.
    """
    tried = {record.key for record in records}
    every = (complete(space, steps) for steps in _plan(space, records, goal, with_reference))
    untried = (recipe for recipe in every if recipe.key not in tried)
    if may_compile:
        return next(untried, None)
    left = list(untried)
    quick = [recipe for recipe in left if not runs_compiler(space, recipe.steps)]
    if not quick and not any(record.status == "done" for record in records):
        quick = left
    return next(iter(quick), None)


def runs_compiler(space: Space, steps: Sequence[Step]) -> bool:
    return any(space.table[step.technique].compiles for step in steps)


def complete(space: Space, steps: Sequence[Step]) -> Recipe:
    """Return a recipe with every option set and every step in its place, so that equal recipes compare equal."""
    full = [
        Step(technique=s.technique, options={**space.techniques[s.technique].default.options, **s.options})
        for s in steps
    ]
    return Recipe(steps=tuple(space.in_order(full)))


def compile_only(space: Space) -> Recipe | None:
    """Return the recipe of torch.compile alone, or None where it cannot run here, as without a compiler."""
    if space.in_process is not None:
        return complete(space, [space.in_process])
    step = space.reference
    if step.technique not in space.techniques:
        return None
    options = space.techniques[step.technique].options
    applies = all(value in options.get(name, ()) for name, value in step.options.items())
    return complete(space, [step]) if applies else None


def _plan(space: Space, records: Sequence[TrialRecord], goal: Goal, with_reference: bool) -> Iterator[list[Step]]:
    """Yield the steps of every recipe of the plan, the most promising first. Some were tried before."""
    reference = compile_only(space)
    if reference is not None and with_reference:
        yield list(reference)
    best = next(iter(ranked(goal, records)), None)
    promise, reached = _promise(space, best, goal)
    # Of two recipes with the same bound the shorter comes first, then one without a compiler: it is built sooner, and
    # its result tells more.
    singles = sorted(
        _singles(space, goal), key=lambda steps: (-promise(steps), len(steps), runs_compiler(space, steps))
    )
    least = goal.least_speedup
    yield from (steps for steps in singles if promise(steps) > reached and space.bound(steps) >= least)
    yield from _combinations(space, records, goal)
    if best is not None:
        yield from _options(space, best.steps)
    yield from singles
    if best is not None:
        yield from _pairs(space, best, records, goal)


def _promise(space: Space, best: TrialRecord | None, goal: Goal) -> tuple[Callable[[Sequence[Step]], float], float]:
    """Return what a recipe can gain at most, as a function, and the gain that has been reached."""
    if goal.asks_for_speed:
        return space.bound, max(1.0, best.speedup or 1.0) if best else 1.0
    if best is None and goal.least_speedup > 1:
        return space.bound, 1.0
    if best is not None and space.original_bytes and best.peak_bytes:
        return space.shrink, max(1.0, space.original_bytes / best.peak_bytes)
    return space.shrink, 1.0


def _singles(space: Space, goal: Goal) -> Iterator[list[Step]]:
    """Yield each technique alone. Each value of an option called `precision` counts as a technique."""
    for entry in space.techniques.values():
        if space.table[entry.technique].restores_quality:
            continue  # alone it changes nothing
        first = [space.choice(entry.technique, space.original_bytes, goal.max_memory_bytes)] + [
            s for s in entry.steps if s.options.get(PRECISION) != entry.default.options.get(PRECISION)
        ]
        for step in first:
            yield [step, *_needs(space, step)]
    for precision in space.precisions:
        step = space.techniques[precision].default
        for backend in space.backends:
            pair = [step, space.techniques[backend].default]
            if space.compatible([step], pair[1]) and not _needs(space, step):
                yield pair


def _needs(space: Space, step: Step) -> list[Step]:
    """Return one technique for each group that a step depends on: the first that applies.

    Where torch.export refuses the model, nothing can be saved: every recipe needs a backend that works in process.
    """
    needed = []
    if space.in_process is not None and space.compatible([step], space.in_process):
        needed.append(space.in_process)
    for group in space.table[step.technique].needs:
        for entry in space.techniques.values():
            if group in entry.groups and space.compatible([step], entry.default):
                needed.append(entry.default)
                break
    return needed


def _combinations(space: Space, records: Sequence[TrialRecord], goal: Goal) -> Iterator[list[Step]]:
    """Yield the best recipe with one more technique, and better recipes that were rejected with what they lack."""
    best = next(iter(ranked(goal, records)), None)

    def better(cause: str) -> list[TrialRecord]:
        rejected = ranked(goal, [r for r in records if r.rejected_for == cause], status="rejected")
        return [record for record in rejected if best is None or _is_better(goal, record, best)]

    for record in better("quality")[:1]:
        yield from _less_lossy(space, record)
    # Those first that miss the limit least: the smallest may need more than one technique can make good.
    for record in sorted(better("slowdown"), key=lambda r: -(r.speedup or 0.0))[:_NUM_SLOW]:
        yield from _faster(space, record, records)
    for record in better("memory"):
        yield from _fitting(space, record, goal)
    if best is None:
        return
    if not goal.asks_for_speed:
        yield from _smaller(space, best.steps)
    rival = _rival(space, best, records, goal)
    for record in (best, rival) if rival else (best,):
        for entry in _additions(space, record.steps, goal):
            yield [*record.steps, entry.default]


def _promise_of(entry: ApplicableTechnique, goal: Goal) -> float:
    """Return how many times faster, or smaller where bytes are asked for, a technique makes a recipe at the most."""
    return entry.bound(entry.default) if goal.asks_for_speed else entry.shrink(entry.default)


def _additions(space: Space, steps: Sequence[Step], goal: Goal) -> list[ApplicableTechnique]:
    """Return the techniques that can join a recipe, those first that promise most."""
    found = [
        entry
        for entry in space.techniques.values()
        if not space.table[entry.technique].restores_quality and space.compatible(steps, entry.default)
    ]
    return sorted(found, key=lambda entry: (-_promise_of(entry, goal), -entry.most))


def _rival(space: Space, best: TrialRecord, records: Sequence[TrialRecord], goal: Goal) -> TrialRecord | None:
    """Return the next best trial with another backend, or otherwise another choice of a group, unless it is far behind.

    What joins the best one then joins it too: scatter may hide that it wins.
    """
    if not goal.asks_for_speed or not best.speedup:
        return None
    chosen = _by_group(space, best.steps)
    for record in ranked(goal, records)[1:]:
        others = _by_group(space, record.steps)
        if any(others[group] != chosen[group] for group in chosen.keys() & others.keys()):
            return record if (record.speedup or 0.0) * _SCATTER >= best.speedup else None
    return None


def _by_group(space: Space, steps: Sequence[Step]) -> dict[str, str]:
    """Return which technique a recipe chooses of each group."""
    return {group: step.technique for step in steps for group in space.techniques[step.technique].groups}


def _pairs(space: Space, best: TrialRecord, records: Sequence[TrialRecord], goal: Goal) -> Iterator[list[Step]]:
    """Yield the best recipe with two more techniques, those first that promise most: neither may gain anything alone.

    A thread that reads ahead needs a core that computing threads leave; a peak falls once all that reach it are lower.
    What failed or lost quality, alone or with the best recipe, is left out.
    """
    useless = {
        record.key
        for record in records
        if record.status in ("failed", "refused") or record.rejected_for in ("quality", "outputs")
    }
    entries = [
        entry
        for entry in _additions(space, best.steps, goal)
        if _promise_of(entry, goal) > 1
        and not useless & {complete(space, [*steps, entry.default]).key for steps in ((), best.steps)}
    ]
    pairs = [(a, b) for a, b in itertools.combinations(entries, 2) if space.compatible([a.default], b.default)]
    pairs.sort(key=lambda pair: -_promise_of(pair[0], goal) * _promise_of(pair[1], goal))
    for a, b in pairs[:_MOST_PAIRS]:
        yield [*best.steps, a.default, b.default]


def _is_better(goal: Goal, a: TrialRecord, b: TrialRecord) -> bool:
    value, other = goal.value(a), goal.value(b)
    return value is not None and other is not None and value < other


def _faster(space: Space, rejected: TrialRecord, records: Sequence[TrialRecord]) -> Iterator[list[Step]]:
    """Yield a recipe that is too slow with a technique that could gain most, by its own trial or its bound."""
    alone = {record.key: record.speedup for record in records if record.speedup}
    gains = {}
    for entry in space.techniques.values():
        measured = alone.get(complete(space, [entry.default]).key)
        gain = entry.bound(entry.default) if measured is None else measured * _SCATTER
        if gain > 1 and space.compatible(rejected.steps, entry.default):
            gains[entry.technique] = gain
    for name in sorted(gains, key=lambda name: -gains[name])[:_NUM_FASTER]:
        yield [*rejected.steps, space.techniques[name].default]


def _fitting(space: Space, rejected: TrialRecord, goal: Goal) -> Iterator[list[Step]]:
    """Yield a recipe that needs too much memory with more of what it saves, or with a technique that saves some.

    What it needs tells how much its techniques save here. Of further techniques the one that saves most comes first.
    """
    if not space.original_bytes or not rejected.peak_bytes:
        return  # what is known to become smaller are weights alone
    for i, step in enumerate(rejected.steps):
        without = int(rejected.peak_bytes * space.shrink([step]))
        more = space.choice(step.technique, without, goal.max_memory_bytes)
        if space.shrink([more]) > space.shrink([step]):
            yield [*rejected.steps[:i], more, *rejected.steps[i + 1 :]]
    choices = [space.choice(name, rejected.peak_bytes, goal.max_memory_bytes) for name in space.techniques]
    saving = [step for step in choices if space.shrink([step]) > 1 and space.compatible(rejected.steps, step)]
    for step in sorted(saving, key=lambda step: -space.shrink([step])):
        yield [*rejected.steps, step]


def _smaller(space: Space, steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield a recipe with an option changed by which a technique saves more."""
    for i, step in enumerate(steps):
        entry = space.techniques[step.technique]
        for variant in entry.steps:
            if entry.shrink(variant) > entry.shrink(step):
                yield [*steps[:i], variant, *steps[i + 1 :]]


def _less_lossy(space: Space, rejected: TrialRecord) -> Iterator[list[Step]]:
    """Yield a recipe that loses quality with its most sensitive layers left in floating point.

    A technique marks these layers, where a step reads such marks. Where a step has an option `keep`, that does it.
    """
    steps = rejected.steps
    if any(space.table[step.technique].reads_kept for step in steps):
        for entry in [t for t in space.techniques.values() if space.table[t.technique].restores_quality]:
            yield from ([*steps, step] for step in entry.steps if space.compatible(steps, step))
    yield from _options(space, steps, "keep")


def _options(space: Space, steps: Sequence[Step], only: str = "") -> Iterator[list[Step]]:
    """Yield the recipe with one option changed. With `only`, just the option of that name is changed."""
    for i, step in enumerate(steps):
        for name, values in space.techniques[step.technique].options.items():
            for value in values:
                if value != step.options.get(name) and only in ("", name):
                    yield [
                        *steps[:i],
                        Step(technique=step.technique, options={**step.options, name: value}),
                        *steps[i + 1 :],
                    ]
