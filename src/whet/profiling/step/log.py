"""Find where one training step ends and the next begins, and keep sums, a sample, and the latest few steps.

A step lasts from the moment when the loop asks for a batch until the loop asks for the first batch after an optimiser's
step. So with gradient accumulation, a step has several batches. If the same optimiser steps again without a new batch
(because one batch is used repeatedly, or because the loop makes its batches), a step ends with each optimiser's step.
Time between the end of an epoch and the next batch, as for a validation, is in no step.

Memory is bounded however long the run is: it holds sums, `_SAMPLE` steps drawn at random for the percentiles, and the
`_RECENT` latest steps.
"""

import random
from collections import deque
from collections.abc import Callable
from operator import add
from threading import Lock
from typing import NamedTuple

from whet.profiling.step.communication import Communication
from whet.profiling.step.device_marks import DeviceMarks
from whet.profiling.step.growth import MemorySeries, memory_series
from whet.profiling.step.phases import Phase, PhaseClock

NUM_WARM_UP = 2  # the first steps make buffers, compile and start workers; they are kept apart
_LABELS, _REST = tuple(phase.label for phase in Phase), Phase.REST.label
_SAMPLE = 1024
_RECENT = 256


class StepRecord(NamedTuple):
    """Describe one step.

    Attributes:
        number: The step's number, from 0.
        start_ns: When it began, by time.perf_counter_ns.
        ns: Nanoseconds by Phase. They add up to the step.
        calls: Calls by Phase.
        loss_ns: Nanoseconds of the rest between forward and backward.
        device_ns: Nanoseconds by Phase on the GPU's own clock. Only the records in `StepLog.device_sums` have them.
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
        """Return seconds by the phase's name, for the phases that were seen in this step, and for the rest."""
        # Labels are quicker than the enum's members, and a monitor calls this for every step.
        return {
            label: ns / 1e9
            for label, ns, calls in zip(_LABELS, self.ns, self.calls, strict=True)
            if calls or label == _REST
        }


class Sums:
    """Hold totals over steps, and a uniform sample of them (Vitter's algorithm R)."""

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
    """Tell steps apart, and keep their totals. The patches report batches and optimiser steps to it.

    Args:
        on_step: Called with each StepRecord as the step ends, in the loop's thread. Its exceptions reach the loop.
        device: The device type of the model, if it is known already.
        on_batch: Called with each batch that any DataLoader gives the loop.
        with_memory: Whether to read memory as steps end.
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
        self.communication = Communication()
        self.warm_up: list[StepRecord] = []
        self._sums = Sums()
        self._unsummed: deque[StepRecord] = deque()  # records that `_add_up` will add to the sums
        self._summing = Lock()
        self.device_sums = Sums()  # of the steps that the GPU has finished; empty without a GPU
        self.recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self.memory: list[MemorySeries] = []
        self.device: str | None = None
        self.num_stepped = 0  # calls of all optimisers
        self.num_unfinished = 0  # backward passes that no optimiser's step followed
        self.ended_by = ""  # what cut the run short, in words
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
        """Return the totals of the steps after the warm-up. This may be read from any thread."""
        self._add_up()
        return self._sums

    @property
    def num_steps(self) -> int:
        """Return how many steps have ended, including the warm-up."""
        return self._number

    def set_device(self, device: str) -> None:
        """Set the model's device type. It decides which memory is read, and whether phases are timed on a GPU."""
        self.device = device
        self.memory = memory_series(device) if self._with_memory else []
        self._marks = DeviceMarks() if device == "cuda" else None

    def batch_asked(self) -> None:
        """Note that the loop asks for a batch. Call it in the loop's thread, before the clock enters the data phase."""
        if self._steps_since_data == 1:
            self._ends_with_optimizer = False
        self._steps_since_data = 0
        if self._is_open and self._has_stepped:
            self._close()
        elif not self._is_open or self._by_optimizer:
            self._begin()

    def batch_given(self) -> None:
        self._num_batches += 1

    def loader_ended(self) -> None:
        """Note the end of an epoch, and discard the step that has begun since the last one."""
        if self.clock.is_mine():
            self._drop()

    def optimizer_stepped(self, optimizer: int) -> None:
        """Note that an optimiser, known by its id, has made a step, or that a gradient scaler has skipped the step."""
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
        """Note that the loop is over or pauses. `ended_by` is what cut the loop short, in words, or "".

        The last step counts if the optimiser has stepped, unless the loop was cut short.
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
            self.num_unfinished += 1  # without a backward pass it was a validation, and no unfinished step
        self._is_open = False
        self.clock.marks = None

    def _close(self) -> None:
        """End the step and begin the next one. The time that this bookkeeping takes is in no step."""
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
            self.communication.reset()
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
