"""Time whole streams: frames are read, turned and written as `whet stream` does it."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from whet.comparison.variant import Variant
from whet.measure.evidence import Evidence
from whet.streamer.frames import Size
from whet.streamer.loop import Answer
from whet.streamer.sinks import NullSink, Sink, open_sink
from whet.streamer.sources import Source, open_source
from whet.streamer.sources.memory import Endless
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import Opened
from whet.streamer.tuned import read_tuned

FRAMES = 8  # of one timed call, so that skipped frames and computed ones count together
_WARM_UP_CALLS = 2
_SIDE_BUDGET_S = 3.0
_SIDE_LIMIT_S = 300.0


class StreamAnswers:
    """Ask a stream for its next answers, as often as wanted. Its source begins again at its end.

    Args:
        sink: Where the answers are written; None for nowhere.
        codec_threads: The threads of a video's decoder; None leaves them to it.
    """

    is_sequence = False
    num_kinds = 1
    num_samples = float(FRAMES)

    def __init__(
        self,
        target: str | Opened,
        options: StreamOptions,
        source: str,
        sink: Sink | None = None,
        codec_threads: int | None = None,
    ) -> None:
        def endless(size: Size) -> Source:
            return Endless(lambda: open_source(source, size=size, threads=codec_threads))

        self._stream = Stream(target, endless, options)
        self._sink = sink or NullSink()
        self._answers: Iterator[Answer] = iter(self._stream)

    def measuring(self) -> AbstractContextManager[object]:
        """Return a context that does nothing: a stream chooses its own."""
        return contextlib.nullcontext()

    def warm_up(self) -> None:
        for _ in range(_WARM_UP_CALLS):
            self.once()

    def once(self) -> None:
        for _ in range(FRAMES):
            answer = next(self._answers)
            self._sink.write(answer.image, answer.frame.time_s)

    def evidence(self, folder: Path) -> Evidence | None:
        """Return nothing: the answers' quality is judged apart."""
        return None

    def close(self) -> None:
        self._stream.close()
        self._sink.close()


def build_side(directory: str, others: dict[str, Any], source: str, sink_suffix: str, videos: str) -> StreamAnswers:
    """Build one side of the comparison in its process, with the arguments that `side` gives."""
    if others.get("prompt_embeds") is not None:
        others = {**others, "prompt_embeds": Path(others["prompt_embeds"])}
    codec_threads = read_tuned(Path(directory)).settings.get("codec_threads")
    sink = scratch_sink(Path(videos), sink_suffix, codec_threads)
    return StreamAnswers(directory, StreamOptions(**others), source, sink, codec_threads)


def scratch_sink(directory: Path, suffix: str, codec_threads: int | None) -> Sink | None:
    """Return a sink whose file nobody keeps; None without a suffix."""
    if not suffix:
        return None
    number = next(i for i in range(10**6) if not (directory / f"answers-{i}{suffix}").exists())
    return open_sink(str(directory / f"answers-{number}{suffix}"), threads=codec_threads)


def side(name: str, tuned: Path, others: dict[str, Any], source: str, sink_suffix: str, scratch: Path) -> Variant:
    """Return one side of a comparison.

    Args:
        tuned: The directory of the tuned stream.
        others: The options that tuning does not fix, as JSON holds them.
        sink_suffix: The suffix of the video that is written; "" for none.
        scratch: Where the processes' files lie.
    """
    where = source if source.startswith("synthetic") else str(Path(source).absolute())
    (scratch / name / "videos").mkdir(parents=True)
    return Variant(
        name=name,
        build=build_side,
        arguments={
            "directory": str(tuned.absolute()),
            "others": others,
            "source": where,
            "sink_suffix": sink_suffix,
            "videos": str((scratch / name / "videos").absolute()),
        },
        directory=scratch / name / "runs",
        budget_s=_SIDE_BUDGET_S,
        time_limit_s=_SIDE_LIMIT_S,
        with_evidence=False,
    )
