"""Choose what of a stream to try next, as a pure function of the trials, so that a resumed search goes on with it.

The order depends on the stream. A model that works on one frame at a time takes the same shapes at any number of steps,
so it is tuned first, and the steps are chosen with it. In a rolling batch, the number of steps is the batch, so the
steps are chosen first. Frames of still scenes come then, and threads last: they depend on all the rest.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from whet.core.recipe import Recipe, Step
from whet.tuner.build import in_order
from whet.tuner.records import TrialRecord
from whet.tuner.streams.settings import Setting
from whet.tuner.streams.techniques import STREAM_TABLE, TENTH, setting_of, step

LEAST_GAIN = 1.03  # of a screening, from which a change of threads or of the batch is kept
MOST_STEPS = 8
_LEAST_STILL = 0.05  # the share of skipped frames from which the filter is tried

Decisions = Generator[Recipe, TrialRecord, Recipe]
"""Ask for trials by their recipes, and return the recipe that is chosen."""


@dataclass(frozen=True)
class Choices:
    """Hold what can be chosen of a stream.

    Attributes:
        samplers: The samplers that it can have, its own first; "" alone where it has no choice.
        names_models: Whether its step names models that artefacts can stand for.
        still_share: The share of the clips' frames that stand still.
        threads: Numbers of threads that are worth trying.
        has_codec: Whether a video is read or written.
        within_s: Seconds that a frame may take, where the best quality within them is looked for.
    """

    original: Setting
    samplers: tuple[str, ...]
    names_models: bool
    still_share: float
    threads: tuple[int, ...]
    has_codec: bool
    within_s: float | None = None

    @property
    def steps(self) -> int:
        """Return the steps that the stream has now; 1 where it has no such choice."""
        return self.original.options.steps or 1


def next_recipe(choices: Choices, records: Sequence[TrialRecord]) -> Recipe | None:
    """Return the next recipe that is worth a trial, or None where all is decided."""
    return _walked(choices, records)[0]


def chosen(choices: Choices, records: Sequence[TrialRecord]) -> Recipe:
    """Return the recipe that the trials so far decide for: the last one that was kept, where the time was up."""
    return _walked(choices, records)[1]


def _walked(choices: Choices, records: Sequence[TrialRecord]) -> tuple[Recipe | None, Recipe]:
    """Go through the decisions as far as the trials tell, and return what is asked for next and what is decided for.

    Nothing is asked for where all is decided, or where another machine tries what comes next.
    """
    kept, known, decisions = Recipe(), {record.key: record for record in records}, _decided(choices)
    try:
        asked = next(decisions)
        while asked.steps in known and known[asked.steps].status != "running":
            record = known[asked.steps]
            kept = asked if record.status == "done" and _beats(choices, record, known.get(kept.steps)) else kept
            asked = decisions.send(record)
    except StopIteration as ended:
        return None, ended.value
    return None if asked.steps in known else asked, kept


def with_step(steps: Sequence[Step], other: Step) -> tuple[Step, ...]:
    """Return a recipe's steps with one more, in the place of one of the same technique."""
    return tuple(in_order([*(one for one in steps if one.technique != other.technique), other], STREAM_TABLE))


def _decided(choices: Choices) -> Decisions:
    steps: tuple[Step, ...] = yield from _batch(choices)
    setting = setting_of(choices.original, steps)
    takes_a_row = not setting.options.rolling or choices.steps == 1
    for decide in (_models, _sampling) if takes_a_row else (_sampling, _models):
        steps = yield from decide(choices, steps)
    steps = yield from _filter(choices, steps)
    return Recipe(steps=(yield from _threads(choices, steps)))


def _tried(steps: Sequence[Step]) -> Generator[Recipe, TrialRecord, TrialRecord]:
    """Ask for a trial, and return its record."""
    record = yield Recipe(steps=tuple(steps))
    return record


Decided = Generator[Recipe, TrialRecord, tuple[Step, ...]]


def _batch(choices: Choices) -> Decided:
    """Decide between a rolling batch and one frame after the other.

    The latter has the lower latency, so the batch has to be clearly faster. Where the other way does not keep the
    quality, the stream stays as it is.
    """
    if choices.steps == 1:
        return ()
    is_rolling = choices.original.options.rolling
    other = (step("batching", rolling=not is_rolling),)
    record = yield from _tried(other)
    if not _keeps_quality(record) or not record.speedup:
        return ()
    rolling_gain = 1 / record.speedup if is_rolling else record.speedup
    return other if (rolling_gain >= LEAST_GAIN) != is_rolling else ()


def _keeps_quality(record: TrialRecord) -> bool:
    """Return whether a trial is as good as the stream was, whether it is fast enough or not."""
    was_judged = record.status == "done" or record.rejected_for == "slowdown"
    return was_judged and (record.stream is None or record.stream.is_same)


def _models(choices: Choices, steps: tuple[Step, ...]) -> Decided:
    """Let tuned artefacts stand for the models, where that keeps the quality."""
    if not choices.names_models:
        return steps
    found = with_step(steps, step("tuned_models"))
    record = yield from _tried(found)
    return found if _keeps_quality(record) else steps  # fewer steps may make it fast enough


def _sampling(choices: Choices, steps: tuple[Step, ...]) -> Decided:
    """Decide on the steps and the sampler: the fewest that keep the quality, or the best that keep the time."""
    if choices.original.options.steps is None:
        return steps
    if choices.within_s is None:
        for number in range(1, choices.steps):
            for name in choices.samplers:
                found = with_step(steps, step("sampling", steps=number, sampler=name))
                if (yield from _tried(found)).status == "done":
                    return found
        return steps
    best, quality = steps, -1.0
    for number in range(1, MOST_STEPS + 1):
        for name in choices.samplers:
            found = with_step(steps, step("sampling", steps=number, sampler=name))
            record = yield from _tried(found)
            if name == choices.samplers[0] and record.rejected_for == "slowdown":
                return best
            if record.status == "done" and (record.quality or 0.0) > quality:
                best, quality = found, record.quality or 0.0
    return best


def _filter(choices: Choices, steps: tuple[Step, ...]) -> Decided:
    """Skip frames of still scenes, where there are some and the quality holds."""
    if choices.still_share < _LEAST_STILL:
        return steps
    found = with_step(steps, step("still_frames"))
    record = yield from _tried(found)
    return found if record.status == "done" and _keeps_quality(record) else steps


def _threads(choices: Choices, steps: tuple[Step, ...]) -> Decided:
    """Decide on the threads of the model, then of the codec, each clearly faster than the best before."""
    names = ["model_threads", *(["codec_threads"] if choices.has_codec else [])]
    best, base = steps, (yield from _tried(steps)).speedup if steps else 1.0
    for name in names:
        for number in choices.threads:
            found = with_step(best, step(name, number=number))
            record = yield from _tried(found)
            if record.status == "done" and (record.speedup or 0.0) >= LEAST_GAIN * (base or 1.0):
                best, base = found, record.speedup
    return best


def _beats(choices: Choices, record: TrialRecord, before: TrialRecord | None) -> bool:
    """Return whether a trial is better than the one before it; any is better than none."""
    if before is None:
        return choices.within_s is not None or (record.speedup or 0.0) > 1
    if choices.within_s is not None:
        return (record.quality or 0.0) > (before.quality or 0.0)
    return (record.speedup or 0.0) > (before.speedup or 0.0)


def instead(choices: Choices, best: Recipe) -> list[Recipe]:
    """Return what may be as good as the stream as it was, where the best is not, on frames that it has not seen.

    That is the same with its own steps, and then with models of a tenth of the error.
    """
    own = tuple(one for one in best.steps if one.technique not in ("sampling", "still_frames"))
    found = [Recipe(steps=own)] if own != best.steps and own else []
    if choices.names_models:
        found.append(Recipe(steps=with_step(own, step("tuned_models", drop=TENTH))))
    return found
