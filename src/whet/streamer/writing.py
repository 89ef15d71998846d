"""Write a stream's answers in a thread of their own: a slow disk or network holds up no frame of a live stream."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from whet.streamer.loop import Answer
from whet.streamer.queues import Closed, FrameQueue
from whet.streamer.sinks import Sink
from whet.streamer.timings import Timings

NUM_WAITING = 8  # answers that may wait for a sink


class Outlet(Protocol):
    """Describe where answers go."""

    name: str

    def take(self, answer: Answer) -> None:
        """Write one answer."""

    def close(self) -> None:
        """Finish what was written."""


class SinkOutlet:
    """Write answers to a sink, which is closed with the outlet."""

    def __init__(self, sink: Sink) -> None:
        self.name = sink.name
        self._sink = sink

    def take(self, answer: Answer) -> None:
        self._sink.write(answer.image, answer.frame.time_s)

    def close(self) -> None:
        self._sink.close()


class Writer:
    """Write answers, in their order. A live stream's oldest answer makes room where writing is too slow.

    Args:
        outlet: Where the answers go. The writer closes it.
        is_live: Whether answers are dropped, rather than the stream held up, while the outlet is busy.
        timings: Counts the answers, and the seconds from a frame's arrival to its answer.
        clock: The clock of the loop.
    """

    def __init__(
        self,
        outlet: Outlet,
        *,
        is_live: bool,
        timings: Timings,
        num_waiting: int = NUM_WAITING,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._outlet, self._timings, self._clock = outlet, timings, clock
        self._queue: FrameQueue[Answer] = FrameQueue(num_waiting, drops_oldest=is_live)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="whet-stream-sink", daemon=True)
        self._thread.start()

    def put(self, answer: Answer) -> None:
        """Have an answer written.

        Raises:
            WhetError: The sink failed at an answer before.
        """
        try:
            if self._queue.put(answer) is not None:
                self._timings.count("unwritten")
        except Closed:
            assert self._error is not None  # only a failed sink closes the queue before `finish`
            raise self._error from None

    def finish(self) -> None:
        """Write what waits, and close the sink, so that what was written can be played.

        Raises:
            WhetError: The sink failed.
        """
        self._queue.close()
        self._thread.join()
        try:
            self._outlet.close()
        finally:
            if self._error is not None:  # it is the cause of whatever closing says
                raise self._error

    def _run(self) -> None:
        try:
            while (answer := self._queue.get()) is not None:
                self._outlet.take(answer)
                self._timings.written(self._clock() - answer.arrived_s, is_computed=answer.is_computed)
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that computes
            self._error = error
            self._queue.close(discard=True)
