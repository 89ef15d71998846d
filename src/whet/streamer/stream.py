"""Run a stream from Python: iterate over its answers, with or without asyncio, or write them to a sink."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import torch

from whet.core.workload import StreamWorkload
from whet.errors import OptionError, TargetError, WhetError
from whet.measure.load import Observed
from whet.models.diffusion.guidance import Guidance
from whet.streamer.frame_skip_filter import FrameSkipFilter
from whet.streamer.frames import Fit, Frame, Size
from whet.streamer.interrupts import uninterrupted
from whet.streamer.loop import Answer, Loop, LoopOptions
from whet.streamer.report import StreamReport, times_of
from whet.streamer.sinks import Sink
from whet.streamer.sources import Source, open_source
from whet.streamer.targets import ModelOptions, Opened, open_target
from whet.streamer.timings import Timings
from whet.streamer.writing import NUM_WAITING, Outlet, SinkOutlet, Writer


@dataclass(frozen=True)
class StreamOptions(ModelOptions):
    """Set how a stream runs, and how its model does: also all attributes of `ModelOptions`.

    Attributes:
        budget_s: Seconds that a frame may take; None for the workload's own, or no limit.
        degrades: Whether a live stream that misses its budget does less for each frame.
        stillness: The cosine similarity from which a still scene's frames may be skipped; None computes all.
        warms_up: Whether the model is called a few times before the first frame.
        fit: How frames of another aspect take the model's size, where the source is given by its name.
        same_size: Whether answers have the size of the frames that came in; otherwise that which the model returns.
        threads: PyTorch's threads in the thread that runs the model; None for what is set.
    """

    budget_s: float | None = None
    degrades: bool = True
    stillness: float | None = None
    warms_up: bool = True
    fit: Fit = "crop"
    same_size: bool = False
    threads: int | None = None


class Stream:
    """Turn the frames of a source into frames, one answer for each.

    A stream runs once. Iterate over it (`for answer in stream`, or `async for`), or call `run(sink)`. Both end at the
    source's end. Use it as a context manager, so that the source is closed.

    Args:
        target: A directory of diffusers, FILE.py:FUNCTION, a StreamWorkload, or a model that is open.
        source: A video file, an image folder, "camera", "synthetic" (see docs/stream.md), or a source that is open.
        options: How the stream and its model run.
        on_taken: Called with each frame once the model was called for it, or it was skipped. Its answer may come later.

    Attributes:
        opened: The model, with its name and the size of its frames.
        timings: The counts and times so far.

    Raises:
        WhetError: The target, the source or an option cannot be used.
    """

    def __init__(
        self,
        target: str | StreamWorkload | Opened,
        source: str | Callable[[Size], Source] = "synthetic",
        options: StreamOptions | None = None,
        *,
        on_taken: Callable[[Frame], None] = lambda frame: None,
    ) -> None:
        self._options = options = options or StreamOptions()
        if options.budget_s is not None and not options.budget_s > 0:
            raise OptionError(f"a budget is above 0 seconds; got {options.budget_s}")
        if not 0 <= options.seed < 2**63:
            raise OptionError(f"a seed is a whole number from 0 to below 2**63; got {options.seed}")
        if options.threads is not None and options.threads < 1:
            raise OptionError(f"--threads is at least 1; got {options.threads}")
        self.opened: Opened = target if isinstance(target, Opened) else open_target(target, options)
        similarity = options.stillness or self.opened.settings.get("stillness")
        stillness = None if similarity is None else FrameSkipFilter(similarity, seed=options.seed)
        self._threads = options.threads or self.opened.settings.get("threads")
        self.opened.model.restart()  # a model that is open may have run before
        budget_s = options.budget_s or self.opened.budget_s
        self.source = (
            open_source(source, size=self.opened.size, fit=options.fit)
            if isinstance(source, str)
            else source(self.opened.size)
        )
        self.timings = Timings(budget_s)
        self._levels: list[tuple[int, str]] = []
        self._steps = self.opened.model.steps
        self._began_s: float | None = None
        self._ended_s = 0.0
        self._observed = Observed()
        self._interrupted, self._error, self._sink_name = False, "", "none"
        self._loop = Loop(
            self.opened.model,
            self.source,
            LoopOptions(
                budget_s=budget_s,
                degrades=options.degrades and self.source.is_live,
                size=self.opened.size if options.same_size else None,
                stillness=stillness,
            ),
            self.timings,
            on_level=lambda level: self._levels.append((self._loop.newest, str(level))),
            on_taken=on_taken,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream, and release the source."""
        self._loop.stop()
        self.source.close()

    def __iter__(self) -> Iterator[Answer]:
        """Yield an answer for each frame, in their order.

        Raises:
            TargetError: The stream has run already.
            WhetError: The source or the model failed.
        """
        if self._began_s is not None:
            raise TargetError("a stream runs once; open another one")
        threads_before = torch.get_num_threads()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        if self._options.warms_up:
            self.opened.model.warm_up(self.opened.size)
        self._began_s = time.perf_counter()
        try:
            with self._observed:
                yield from self._loop
        except WhetError as error:
            self._error = str(error)
            raise
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        finally:
            self._ended_s = time.perf_counter()
            if self._threads is not None:
                torch.set_num_threads(threads_before)
            self.close()

    async def __aiter__(self) -> AsyncIterator[Answer]:
        """Yield the answers to asyncio. The model runs in another thread."""
        answers, loop = iter(self), asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="whet-stream") as thread:
            while (answer := await loop.run_in_executor(thread, next, answers, None)) is not None:
                yield answer

    def run(self, sink: Sink, *, on_answer: Callable[[Answer], None] = lambda answer: None) -> StreamReport:
        """Write all answers to a sink, and return the report. The sink is closed, also where the stream fails.

        On Ctrl-C the report says so, and what was written can be played.

        Raises:
            WhetError: The source, the model or the sink failed. `report` says how far the stream came.
        """
        return self.deliver(SinkOutlet(sink), on_answer=on_answer)

    def deliver(
        self,
        outlet: Outlet,
        *,
        num_waiting: int = NUM_WAITING,
        on_answer: Callable[[Answer], None] = lambda answer: None,
    ) -> StreamReport:
        """Hand all answers to an outlet in a thread of its own, and return the report. The outlet is closed.

        Args:
            on_answer: Called with each answer, in this thread.

        Raises:
            WhetError: The source, the model or the outlet failed. `report` says how far the stream came.
        """
        self._sink_name = outlet.name
        writer = Writer(outlet, is_live=self.source.is_live, timings=self.timings, num_waiting=num_waiting)
        try:
            try:
                for answer in self:
                    writer.put(answer)
                    on_answer(answer)
            except KeyboardInterrupt:
                self._interrupted = True
            finally:
                with uninterrupted() as signals:
                    writer.finish()
                self._interrupted |= bool(signals)
        except WhetError as error:
            self._error = str(error)
            raise
        return self.report()

    def change_prompt(self, prompt: str, negative: str = "") -> None:
        """Set the prompt before the next frame. It may be called from any thread.

        Raises:
            OptionError: The model takes no text, or not this one. The stream goes on as before.
        """
        if self.opened.prepare_prompt is None:
            raise OptionError(f"{self.opened.name} takes no text as a prompt")
        self._loop.ask(self.opened.prepare_prompt(prompt, negative))

    def change_guidance(self, guidance: Guidance) -> None:
        """Set the guidance before the next frame. It may be called from any thread.

        Raises:
            OptionError: The model takes no guidance, or not this one. The stream goes on as before.
        """
        if self.opened.prepare_guidance is None:
            raise OptionError(f"{self.opened.name} takes no guidance")
        self._loop.ask(self.opened.prepare_guidance(guidance))

    def report(self) -> StreamReport:
        """Return what the stream did so far."""
        began_s = self._began_s or 0.0
        return StreamReport(
            target=self.opened.name,
            source=self.source.name,
            sink=self._sink_name,
            size=self.opened.size,
            steps=self._steps,
            sampler=self.opened.sampler,
            problems=dict(self.source.problems),
            wall_s=(self._ended_s or time.perf_counter()) - began_s if self._began_s else 0.0,
            levels=tuple(self._levels),
            ended_at=str(self._loop.level),
            busy="" if self._observed.load.is_quiet else self._observed.load.cause,
            interrupted=self._interrupted,
            error=self._error or self.source.damage,
            notes=(*self.source.notes, *self.opened.notes),
            **times_of(self.timings),
        )
