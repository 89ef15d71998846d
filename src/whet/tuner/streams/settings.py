"""Hold one way to run a stream, and judge and time it on clips."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.measure.clock import time_measurable
from whet.streamer.module_swaps import Replacements, Shapes
from whet.streamer.stream import StreamOptions
from whet.streamer.targets import Opened, open_target
from whet.tuner.streams.clips import Clip
from whet.tuner.streams.quality import Figures, answers, measured
from whet.tuner.streams.sides import FRAMES, StreamAnswers, scratch_sink

_SCREEN_S = 0.6  # of timing

Models = dict[str, tuple[Any, Shapes]]
"""What stands for the stream's models, with the shapes that it takes, by the name of the call."""


@dataclass(frozen=True)
class Setting:
    """Hold one way to run the stream; with None as `codec_threads`, a video's decoder and encoder have their own."""

    options: StreamOptions
    codec_threads: int | None = None


@dataclass
class Bench:
    """Judge and time settings of one stream.

    Attributes:
        source: The name of the source for timing.
        sink_suffix: The suffix of the video that is written while it is timed; "" for none.
        clips: The clips, with their truth.
        scratch: A directory for files that nobody keeps.
        models: What stands for the stream's models.
    """

    target: str
    source: str
    sink_suffix: str
    clips: Sequence[Clip]
    scratch: Path
    models: Models = field(default_factory=dict)

    def open(self, setting: Setting) -> Opened:
        opened = open_target(self.target, setting.options)
        if self.models:
            replacements = Replacements(opened.model.step)
            for name, (model, shapes) in self.models.items():
                replacements.replace(name, model, shapes)
        return opened

    def judged(self, setting: Setting, clips: Sequence[Clip] | None = None) -> Figures:
        """Return the quality of a setting, on these clips or on others."""
        chosen = self.clips if clips is None else clips
        return measured(chosen, answers(self.open(setting), chosen, setting.options))

    def timed(self, setting: Setting) -> tuple[float, str]:
        """Return the seconds of a frame, and what disturbed them ("" for nothing)."""
        sink = scratch_sink(self.scratch, self.sink_suffix, setting.codec_threads)
        stream = StreamAnswers(self.open(setting), setting.options, self.source, sink, setting.codec_threads)
        try:
            found = time_measurable(stream, budget_s=_SCREEN_S)
            return found.latency_ms / 1e3 / FRAMES, found.cause
        finally:
            stream.close()
