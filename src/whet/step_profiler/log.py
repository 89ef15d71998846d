"""Where one training step ends and the next begins, and what is kept of them: sums, a sample, the latest few.

A step lasts from the moment the loop asks for a batch to the next such moment after an optimiser step. So with gradient
accumulation a step has several batches. Where the same optimiser steps again without a new batch (one batch used over
and over, batches made in the loop), a step ends with each optimiser step. What lies between the end of an epoch and the
next batch, as a validation, is in no step.

Memory is bounded, however long the run: sums, `_SAMPLE` steps drawn at random for the percentiles, `_RECENT` latest.
"""

import random
from collections import deque
from collections.abc import Callable
from operator import add
from threading import Lock
from typing import NamedTuple

from whet.step_profiler.device_marks import DeviceMarks
from whet.step_profiler.growth import MemorySeries, memory_series
from whet.step_profiler.phases import Phase, PhaseClock

NUM_WARM_UP = 2  # steps that make buffers, compile and start workers: kept apart
_LABELS, _REST = tuple(phase.label for phase in Phase), Phase.REST.label
_SAMPLE = 1024
_RECENT = 256


class StepRecord(NamedTuple):
    """One step, numbered from 0. ns and calls: by Phase; the ns add up to the step.

    start_ns: of time.perf_counter_ns. loss_ns: of the rest, between forward and backward. num_batches: taken from the
    loader. device_ns: by Phase on the GPU's own clock, in a record of `StepLog.device_sums`; None in the others.
    """

    number: int
    start_ns: int
    ns: tuple[int, ...]
    calls: tuple[int, ...]
    loss_ns: int
    num_batches: int
    device_ns: tuple[int, ...] | None = None

    @property
    def seconds(self) -> float:
        return sum(self.ns) / 1e9

    def phases_s(self) -> dict[str, float]:
        """Seconds by the phase's name, for those phases that were seen in this step, and the rest."""
        # By zip and labels, not by the enum's members: a monitor asks this of every step.
        return {
            label: ns / 1e9
            for label, ns, calls in zip(_LABELS, self.ns, self.calls, strict=True)
            if calls or label == _REST
        }


class Sums:
    """Totals over steps, and a uniform sample of them (Vitter's algorithm R)."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.ns = [0] * len(Phase)
        self.calls = [0] * len(Phase)
        self.loss_ns = 0
        self.num_batches = 0
        self.sample: list[StepRecord] = []
        self._random = random.Random(0)

    def add(self, record: StepRecord) -> None:
        self.num_steps += 1
        self.ns = list(map(add, self.ns, record.ns))
        self.calls = list(map(add, self.calls, record.calls))
        self.loss_ns += record.loss_ns
        self.num_batches += record.num_batches
        if len(self.sample) < _SAMPLE:
            self.sample.append(record)
            return
        place = int(self._random.random() * self.num_steps)
        if place < _SAMPLE:
            self.sample[place] = record


class StepLog:
    """Told of batches and optimiser steps by the patches; tells steps apart and keeps what matters of them.

    on_step: called with each StepRecord as the step ends, in the loop's thread; what it raises goes on into the loop.
    on_batch: called with each batch that any DataLoader gives the loop.
    with_memory: look at memory as steps end.
    """

    def __init__(
        self,
        on_step: Callable[[StepRecord], None] | None = None,
        device: str | None = None,
        *,
        on_batch: Callable[[object], None] | None = None,
        with_memory: bool = True,
    ) -> None:
        self.on_batch = on_batch
        self.clock = PhaseClock()
        self.warm_up: list[StepRecord] = []
        self._sums = Sums()
        self._unsummed: deque[StepRecord] = deque()  # a step only puts its record there
        self._summing = Lock()
        self.device_sums = Sums()  # of those that the GPU has finished; empty without one
        self.recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self.memory: list[MemorySeries] = []
        self.device: str | None = None
        self.num_stepped = 0  # calls of optimisers
        self.num_unfinished = 0  # backward passes, and then no step of the optimiser
        self.ended_by = ""  # what cut the run short
        self.loader_facts = ""
        self._on_step = on_step
        self._with_memory = with_memory
        self._marks: DeviceMarks | None = None
        self._number = 0
        self._is_open = self._has_stepped = self._by_optimizer = self._ends_with_optimizer = False
        self._steps_since_data = 0
        self._num_batches = 0
        self._primary: int | None = None
        if device is not None:
            self.set_device(device)

    @property
    def sums(self) -> Sums:
        """Of the steps after the warm-up. May be read from any thread."""
        self._add_up()
        return self._sums

    @property
    def num_steps(self) -> int:
        return self._number

    def set_device(self, device: str) -> None:
        """Which kind of device the model is on: what memory is looked at, and whether phases are timed on a GPU."""
        self.device = device
        self.memory = memory_series(device) if self._with_memory else []
        self._marks = DeviceMarks() if device == "cuda" else None

    def batch_asked(self) -> None:
        """The loop, no other thread, asks for a batch. Called before the clock enters the data phase."""
        if self._steps_since_data == 1:
            self._ends_with_optimizer = False
        self._steps_since_data = 0
        if self._is_open and self._has_stepped:
            self._close()
        elif not self._is_open or self._by_optimizer:
            self._begin()

    def batch_given(self) -> None:
        """The loader has given a batch."""
        self._num_batches += 1

    def loader_ended(self) -> None:
        """There are no more batches in this epoch: what has begun since the last step is none."""
        if self.clock.is_mine():
            self._drop()

    def optimizer_stepped(self, optimizer: int) -> None:
        """An optimiser, known by its id, has made its step, or its scaler has skipped it."""
        if not self.clock.is_mine():
            return
        self.num_stepped += 1
        if self._primary is None:
            self._primary = optimizer
        if optimizer == self._primary:
            self._steps_since_data += 1
        if not self._is_open:
            self._begin()
            self._by_optimizer = True
            return
        self._has_stepped = True
        if optimizer == self._primary and (self._steps_since_data > 1 or self._ends_with_optimizer):
            self._ends_with_optimizer = True
            self._close()

    def finish(self, ended_by: str = "") -> None:
        """The loop is over, or pauses. ended_by: what cut it short, in words.

        A last step that the optimiser has made counts, unless it was cut short.
        """
        self.ended_by = self.ended_by or ended_by
        if self._is_open and self._has_stepped and not ended_by:
            self._close()
        self._drop()
        self._read_marks(wait=True)

    def _add_up(self) -> None:
        with self._summing:
            while self._unsummed:
                self._sums.add(self._unsummed.popleft())

    def _begin(self) -> None:
        self._is_open = True
        self._has_stepped = self._by_optimizer = False
        self._num_batches = 0
        if self._marks is not None:
            self._marks.begin()
        self.clock.marks = self._marks
        self.clock.reset()

    def _drop(self) -> None:
        if self._is_open and not self._by_optimizer and self.clock.take().calls[Phase.BACKWARD]:
            self.num_unfinished += 1  # without a backward pass it was none: a validation
        self._is_open = False
        self.clock.marks = None

    def _close(self) -> None:
        """End the step, and begin the next one after what that took: bookkeeping is in no step."""
        taken = self.clock.take()
        record = StepRecord(self._number, taken.start_ns, taken.ns, taken.calls, taken.loss_ns, self._num_batches)
        self._number += 1
        if self._marks is not None:
            self._marks.end(record.number)
            self._read_marks()
        self.recent.append(record)
        if len(self.warm_up) < NUM_WARM_UP:
            self.warm_up.append(record)
            self.clock.sites.clear()
        else:
            self._unsummed.append(record)
            if len(self._unsummed) >= _RECENT:
                self._add_up()
            for series in self.memory:
                series.sample(record.number)
        self._is_open = False
        if self._on_step is not None:
            self._on_step(record)
        self._begin()

    def _read_marks(self, *, wait: bool = False) -> None:
        if self._marks is None:
            return
        for number, ns in self._marks.passed(wait=wait):
            if number >= NUM_WARM_UP:
                self.device_sums.add(StepRecord(number, 0, ns, (0,) * len(Phase), 0, 0, ns))
