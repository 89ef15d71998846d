"""Prove what the search found: pairs of processes for the speed, unseen clips for the quality, a run for the budget."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.comparison.claim import Claim
from whet.comparison.compare import TimeLimit, compare_all
from whet.comparison.schedules import Rounds
from whet.comparison.stopping import Fixed
from whet.measure.quiet import Patience
from whet.stream_tuner.search import Setting
from whet.stream_tuner.sides import FRAMES, side
from whet.streamer.report import StreamReport
from whet.streamer.sinks import NullSink
from whet.streamer.sources import open_source
from whet.streamer.sources.memory import Endless, MemoryClip
from whet.streamer.stream import Stream
from whet.streamer.targets import Opened
from whet.streamer.tuned import FIXED, TunedModel, TunedStream, settings_of, write_tuned

_PAIRS = 8
_LEAST_PAIRS = 6  # of a verdict: with fewer, the signed-rank test cannot reach 5 %
_BUDGET_FRAMES = 500  # in which the 99th percentile is looked at


@dataclass(frozen=True)
class Finalist:
    """Hold one way to run the stream that is measured in the end.

    Attributes:
        name: Its name in the comparison.
        setting: Its settings.
        models: The artefacts that stand for its models, by the name of the call.
    """

    name: str
    setting: Setting
    models: dict[str, TunedModel]


def write_finalist(directory: Path, target: str, finalist: Finalist) -> None:
    """Write a finalist as a tuned stream. Its artefacts lie in the directory already.

    The file of a target keeps its place: the stream may be opened from any directory.
    """
    settings = {**settings_of(finalist.setting.options), "codec_threads": finalist.setting.codec_threads}
    write_tuned(directory, TunedStream(target=_absolute(target), settings=settings, models=finalist.models))


def _absolute(target: str) -> str:
    place, colon, name = target.rpartition(":")
    if colon and place.endswith(".py"):
        return f"{Path(place).expanduser().absolute()}:{name}"
    path = Path(target).expanduser()
    return str(path.absolute()) if not colon and path.is_dir() else target


def others_of(setting: Setting) -> dict[str, Any]:
    """Return the options that tuning does not fix and that differ from their default, as JSON holds them."""
    options = setting.options
    empty = type(options)()
    left_out = {*FIXED, "budget_s", "degrades", "warms_up", "same_size"}
    found = {name: value for name, value in vars(options).items() if name not in left_out}
    changed = {name: value for name, value in found.items() if value != getattr(empty, name)}
    return {name: str(Path(value).absolute()) if name == "prompt_embeds" else value for name, value in changed.items()}


def compared(
    original: Path,
    finalists: Sequence[tuple[str, Path]],
    others: dict[str, Any],
    source: str,
    sink_suffix: str,
    scratch: Path,
    *,
    patience: Patience,
    limit: TimeLimit,
    report: Callable[[int, int], None],
) -> list[Claim]:
    """Compare finalists with the original in pairs of processes, and return a claim for each.

    Args:
        original: The directory of the original as a tuned stream.
        finalists: The name and the directory of each finalist.
        others: The options that tuning does not fix.
        source: The name of the source.
        sink_suffix: The suffix of the video that is written; "" for none.
        scratch: Where the processes' files lie.
        patience: How long to wait for a quiet machine.
        limit: When to end in any case.
        report: Called with the number of rounds that are done, and of all.
    """
    old = side("original", original, others, source, sink_suffix, scratch)
    pairs = [(old, side(name, directory, others, source, sink_suffix, scratch)) for name, directory in finalists]
    stop = Fixed(_PAIRS, _LEAST_PAIRS)
    found = compare_all(
        pairs,
        schedule=Rounds(0),
        stop=stop,
        patience=patience,
        limit=limit,
        old_may_fail=True,
        report=lambda done, _: report(min(done, stop.most), stop.most),
    )
    return found.claims


def seconds_per_frame(times: Sequence[float]) -> float | None:
    """Return the median seconds of a frame, from those of a side's calls in each of its processes."""
    return statistics.median(times) / FRAMES if times else None


def budget_run(opened: Opened, setting: Setting, source: str, budget_s: float) -> StreamReport:
    """Run a stream for 500 frames, and report whether it keeps a budget. The frames are in memory before it begins.

    Args:
        opened: The stream's model.
        setting: How it runs.
        source: The name of the source.
        budget_s: Seconds that a frame may take.
    """
    with Endless(lambda: open_source(source, size=opened.size)) as frames:
        images = [frame.image for frame in itertools.islice(frames, _BUDGET_FRAMES)]
    options = replace(setting.options, budget_s=budget_s, degrades=False)
    with Stream(opened, lambda size: MemoryClip(source, images), options) as stream:
        return stream.run(NullSink())
