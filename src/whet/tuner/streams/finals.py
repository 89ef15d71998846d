"""Write a way to run the stream as a tuned stream, and run one under a budget."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.streamer.report import StreamReport
from whet.streamer.sinks import NullSink
from whet.streamer.sources import open_source
from whet.streamer.sources.memory import Endless, MemoryClip
from whet.streamer.stream import Stream
from whet.streamer.targets import Opened
from whet.streamer.tuned import FIXED, TunedModel, TunedStream, settings_of, write_tuned
from whet.tuner.streams.settings import Setting

_BUDGET_FRAMES = 500  # in which the 99th percentile is looked at


def write_stream(directory: Path, target: str, setting: Setting, models: dict[str, TunedModel]) -> None:
    """Write a way to run the stream as a tuned stream. Its `models`, by name of the call, lie in the directory already.

    The file of a target keeps its place: the stream may be opened from any directory.
    """
    settings = {**settings_of(setting.options), "codec_threads": setting.codec_threads}
    write_tuned(directory, TunedStream(target=_absolute(target), settings=settings, models=models))


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


def budget_run(opened: Opened, setting: Setting, source: str, budget_s: float) -> StreamReport:
    """Run a stream for 500 frames, which lie in memory, and report whether it keeps `budget_s` seconds a frame."""
    with Endless(lambda: open_source(source, size=opened.size)) as frames:
        images = [frame.image for frame in itertools.islice(frames, _BUDGET_FRAMES)]
    options = replace(setting.options, budget_s=budget_s, degrades=False)
    with Stream(opened, lambda size: MemoryClip(source, images), options) as stream:
        return stream.run(NullSink())
