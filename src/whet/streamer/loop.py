"""Run a stream: read frames in one thread, compute in another, and give answers in the order of the frames."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from whet.errors import ModelError
from whet.streamer.frame_skip_filter import FrameSkipFilter
from whet.streamer.frames import Frame, Image
from whet.streamer.model import FrameModel
from whet.streamer.quality_controller import Controller, Level, levels_of
from whet.streamer.queues import Closed, FrameQueue
from whet.streamer.sources import Source
from whet.streamer.timings import Timings
from whet.streamer.transfers import Staged

Kind = Literal["computed", "still", "skipped", "discarded", "not finite"]

_LONGEST_SLEEP_S = 0.25  # how soon a stream notices that somebody asks for something while no frame comes


@dataclass(frozen=True)
class Answer:
    """Hold what came out for one frame that came in.

    Attributes:
        frame: The frame that came in.
        image: The answer, uint8 [H, W, 3]. Where the frame was not computed, it is the answer before, or black.
        kind: "computed"; "still", for a scene that did not change; "skipped", to keep the budget; "discarded", as the
            level changed while the frame was in flight; or "not finite", where the model returned NaN or infinity.
        arrived_s: The clock's time at which the frame arrived.
        ready_s: The clock's time at which the answer was there.
    """

    frame: Frame
    image: Image
    kind: Kind
    arrived_s: float
    ready_s: float

    @property
    def is_computed(self) -> bool:
        """Return whether the model was run for this frame to the end. Other answers repeat the one before."""
        return self.kind in ("computed", "not finite")


@dataclass(frozen=True)
class Arrival:
    """Hold a frame with the clock's time at which it arrived, and the frame on its way to the model's device."""

    frame: Frame
    arrived_s: float
    staged: Image | Staged


@dataclass(frozen=True)
class LoopOptions:
    """Set how a stream runs.

    Attributes:
        budget_s: Seconds that a frame may take; None for no limit.
        degrades: Whether a stream that misses its budget does less for each frame; see quality_controller.py.
        num_waiting: Frames that may wait for the model. A live source's oldest frame makes room for its newest.
        size: Height and width of the answers; None for those that the model returns.
        stillness: Skips frames of a still scene; None computes all.
    """

    budget_s: float | None = None
    degrades: bool = True
    num_waiting: int = 1
    size: tuple[int, int] | None = None
    stillness: FrameSkipFilter | None = None


class Loop:
    """Iterate over the answers to a source's frames. It may be iterated once; the source is read in its own thread.

    Args:
        model: Turns frames into frames, in the thread that iterates.
        source: The frames. The loop doesn't close it.
        on_taken: Called with each frame once the model was called for it, or it was skipped. Its answer may come later.

    Attributes:
        newest: The index of the newest frame that was taken.
    """

    def __init__(
        self,
        model: FrameModel,
        source: Source,
        options: LoopOptions,
        timings: Timings,
        *,
        clock: Callable[[], float] = time.perf_counter,
        on_level: Callable[[Level], None] = lambda level: None,
        on_taken: Callable[[Frame], None] = lambda frame: None,
    ) -> None:
        self._model, self._source, self._options, self._timings = model, source, options, timings
        self._clock, self._on_level, self._on_taken = clock, on_level, on_taken
        self._frames: FrameQueue[Arrival] = FrameQueue(options.num_waiting, drops_oldest=source.is_live)
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pending: deque[tuple[Arrival, Kind]] = deque()
        self._last: Image | None = None
        self._reader_error: BaseException | None = None
        self._is_stopping = threading.Event()
        self._controller: Controller | None = None
        self.level = Level(model.steps)
        self.newest = 0
        if options.budget_s is not None and options.degrades:
            self._controller = Controller(levels_of(model.steps, model.scales), options.budget_s)
        self._num_since_computed = 0

    def ask(self, request: Callable[[], None]) -> None:
        """Have something done in the model's thread before the next frame, such as changing the prompt."""
        self._requests.put(request)

    def stop(self) -> None:
        """End the stream after the frame that is being computed. Frames in flight get no answer."""
        self._is_stopping.set()
        self._frames.close(discard=True)

    def __iter__(self) -> Iterator[Answer]:
        """Yield one answer for each frame that was not dropped, in their order.

        Raises:
            WhetError: The source or the model failed. What was answered before stands.
        """
        reader = threading.Thread(target=self._read, name="whet-stream-source", daemon=True)
        reader.start()
        try:
            while (arrival := self._next()) is not None:
                yield from self._answers(arrival)
                self._on_taken(arrival.frame)
            while not self._is_stopping.is_set() and self._model.in_flight:
                yield from self._advanced()
            yield from self._ready()
        finally:
            self.stop()
        reader.join(timeout=_LONGEST_SLEEP_S)  # a camera may never return
        if self._reader_error is not None:
            raise self._reader_error

    def _read(self) -> None:
        """Read the source to its end, in the reader's thread."""
        try:
            for frame in self._source:
                self._timings.count("arrived")
                if self._frames.put(Arrival(frame, self._clock(), self._model.stage(frame.image))) is not None:
                    self._timings.count("dropped")
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that iterates
            self._reader_error = error
        finally:
            self._frames.close()

    def _next(self) -> Arrival | None:
        """Wait for the next frame; None at the end. Requests are met meanwhile."""
        while not self._is_stopping.is_set():
            self._meet_requests()
            try:
                arrival = self._frames.get(_LONGEST_SLEEP_S)
            except Closed:
                return None
            if arrival is not None:
                self._meet_requests()
                return arrival
        return None

    def _meet_requests(self) -> None:
        while True:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return
            request()

    def _answers(self, arrival: Arrival) -> Iterator[Answer]:
        """Yield what one new frame lets come out."""
        self.newest = arrival.frame.index
        if self._options.stillness is not None and self._options.stillness.skips(arrival.frame.image):
            self._timings.count("still")
            self._pending.append((arrival, "still"))
            if self._model.in_flight:
                yield from self._advanced()
            yield from self._ready()
            return
        self._num_since_computed += 1
        if self._num_since_computed < self.level.every and self._last is not None:
            self._timings.count("skipped")
            self._pending.append((arrival, "skipped"))
            yield from self._ready()
            return
        self._num_since_computed = 0
        self._pending.append((arrival, "computed"))
        taken_s = self._clock()
        frame = self._model.as_input(arrival.staged, self.level.scale)
        yield from self._called(lambda: self._model(frame), taken_s)
        yield from self._ready()

    def _advanced(self) -> Iterator[Answer]:
        yield from self._called(self._model.advance, self._clock())

    def _called(self, call: Callable[[], Tensor | None], taken_s: float) -> Iterator[Answer]:
        """Call the model once, yield the answers that are ready, and see whether the budget holds."""
        began_s = self._clock()
        output = call()
        model_s = self._clock() - began_s
        image = None if output is None else self._model.as_image(output, self._options.size)
        ended_s = self._clock()
        is_final = image is not None
        self._timings.computed(
            model_s=model_s, frame_s=ended_s - taken_s, ended_s=ended_s, is_final=is_final, every=self.level.every
        )
        if output is not None:
            yield from self._ready()  # frames that repeat an answer before this one
            yield self._answer(image, ended_s)
        self._check_pending()
        if self._controller is not None and (level := self._controller.add(ended_s - taken_s)) is not None:
            self._change(level)

    def _check_pending(self) -> None:
        """Raise ModelError where the model keeps frames that it does not count, whose answers would never come."""
        num_waiting = sum(kind == "computed" for _, kind in self._pending)
        if num_waiting != self._model.in_flight:
            raise ModelError(
                f"the stream's model owes {num_waiting} answers, and has in_flight = {self._model.in_flight}; "
                "a model that returns None counts its frames in `in_flight`, and goes on with them in `advance()`"
            )

    def _answer(self, image: Image | None, ready_s: float) -> Answer:
        arrival, kind = self._pending.popleft()
        if image is None:
            self._timings.count("not_finite")
            kind = "not finite"
        else:
            self._last = image
        return self._answer_of(arrival, kind, ready_s)

    def _ready(self) -> Iterator[Answer]:
        """Yield the answers of frames that repeat the one before, up to the first frame in flight."""
        while self._pending and self._pending[0][1] != "computed":
            arrival, kind = self._pending.popleft()
            yield self._answer_of(arrival, kind, self._clock())

    def _answer_of(self, arrival: Arrival, kind: Kind, ready_s: float) -> Answer:
        image = self._last
        if image is None:  # nothing was computed yet
            image = np.zeros((*(self._options.size or arrival.frame.image.shape[:2]), 3), np.uint8)
        return Answer(arrival.frame, image, kind, arrival.arrived_s, ready_s)

    def _change(self, level: Level) -> None:
        """Go on with another level. Frames in flight are discarded: their answers would come later still."""
        if (level.steps, level.scale) != (self.level.steps, self.level.scale):
            self._model.change(level.steps)
            self._timings.count(*("discarded" for _, kind in self._pending if kind == "computed"))
            self._pending = deque(
                (arrival, "discarded" if kind == "computed" else kind) for arrival, kind in self._pending
            )
        self.level = level
        self._num_since_computed = 0
        self._timings.count("level_changes")
        self._on_level(level)
