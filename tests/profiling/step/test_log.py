"""Where steps begin and end, whatever the loop looks like; and that what is kept of them is bounded."""

import math
from collections.abc import Callable

import pytest

from whet.profiling.step.log import NUM_WARM_UP, StepLog, StepRecord, Sums
from whet.profiling.step.phases import Phase

MAIN, OTHER = 1, 2  # ids of optimisers


class Loop:
    """A training loop reduced to what a log is told."""

    def __init__(self, on_step: Callable[[StepRecord], None] | None = None) -> None:
        self.log = StepLog(on_step)
        self.log.clock.is_on = True

    def batch(self) -> None:
        self.log.batch_asked()
        self._phase(Phase.DATA)
        self.log.batch_given()

    def end_of_epoch(self) -> None:
        self.log.batch_asked()
        self._phase(Phase.DATA)
        self.log.loader_ended()

    def forward(self) -> None:
        self._phase(Phase.FORWARD)

    def backward(self) -> None:
        self._phase(Phase.BACKWARD)

    def step(self, optimizer: int = MAIN) -> None:
        self._phase(Phase.OPTIMIZER)
        self.log.optimizer_stepped(optimizer)

    def _phase(self, phase: Phase) -> None:
        self.log.clock.enter(phase)
        self.log.clock.leave()

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(forward passes, optimiser steps) of each step."""
        return [(r.calls[Phase.FORWARD], r.calls[Phase.OPTIMIZER]) for r in self.log.recent]


def test_a_step_lasts_from_batch_to_batch() -> None:
    loop = Loop()
    for _ in range(4):
        loop.batch()
        loop.forward()
        loop.step()
    assert loop.log.num_steps == 3  # the fourth still lasts
    loop.log.finish()
    assert loop.calls == [(1, 1)] * 4
    assert [record.number for record in loop.log.recent] == [0, 1, 2, 3]
    assert all(record.num_batches == 1 for record in loop.log.recent)


def test_accumulated_gradients_make_one_step_of_several_batches() -> None:
    loop = Loop()
    for index in range(12):
        loop.batch()
        loop.forward()
        if index % 4 == 3:
            loop.step()
    loop.log.finish()
    assert loop.calls == [(4, 1)] * 3
    assert [record.num_batches for record in loop.log.recent] == [4, 4, 4]


def test_two_optimisers_make_one_step() -> None:
    loop = Loop()
    for _ in range(3):
        loop.batch()
        loop.forward()
        loop.step(OTHER)
        loop.forward()
        loop.step(MAIN)
    loop.log.finish()
    assert loop.calls == [(2, 2)] * 3


def test_a_loop_without_a_loader_has_a_step_for_each_of_the_optimiser() -> None:
    loop = Loop()
    for _ in range(10):
        loop.forward()
        loop.step()
    loop.log.finish()
    assert loop.calls[1:] == [(1, 1)] * (len(loop.calls) - 1)
    assert 8 <= loop.log.num_steps <= 9  # the very first was under way when it was noticed


def test_one_batch_used_over_and_over_makes_many_steps() -> None:
    loop = Loop()
    loop.batch()
    for _ in range(10):
        loop.forward()
        loop.step()
    loop.log.finish()
    assert loop.calls == [(2, 2)] + [(1, 1)] * 8


def test_several_steps_on_each_batch_are_steps_of_their_own() -> None:
    loop = Loop()
    for _ in range(4):
        loop.batch()
        for _ in range(3):
            loop.forward()
            loop.step()
    loop.log.finish()
    assert loop.calls[1:] == [(1, 1)] * (len(loop.calls) - 1)
    assert len(loop.calls) == 11


def test_what_lies_between_epochs_is_in_no_step() -> None:
    loop = Loop()
    for _ in range(2):
        for _ in range(3):
            loop.batch()
            loop.forward()
            loop.step()
        loop.end_of_epoch()
        for _ in range(5):
            loop.forward()  # a validation
    loop.log.finish()
    assert loop.calls == [(1, 1)] * 6
    assert loop.log.num_unfinished == 0


def test_batches_left_over_at_the_end_of_an_epoch_are_no_step() -> None:
    loop = Loop()
    for _ in range(2):
        for index in range(5):
            loop.batch()
            loop.forward()
            loop.backward()
            if index % 2:
                loop.step()
        loop.end_of_epoch()
    loop.log.finish()
    assert loop.calls == [(2, 1)] * 4
    assert loop.log.num_unfinished == 2


def test_a_validation_over_a_loader_of_its_own_is_no_step_and_none_cut_off() -> None:
    loop = Loop()
    for _ in range(2):
        for _ in range(3):
            loop.batch()
            loop.forward()
            loop.backward()
            loop.step()
        loop.end_of_epoch()
        for _ in range(4):
            loop.batch()
            loop.forward()
        loop.end_of_epoch()
    loop.log.finish()
    assert loop.calls == [(1, 1)] * 6
    assert loop.log.num_unfinished == 0


def test_an_optimiser_step_after_the_epoch_does_not_spoil_the_next_ones_first_step() -> None:
    loop = Loop()
    loop.batch()
    loop.end_of_epoch()
    loop.step()
    loop.forward()
    for _ in range(2):
        loop.batch()
        loop.forward()
        loop.step()
    loop.log.finish()
    assert loop.calls == [(1, 1)] * 2


def test_a_step_that_was_cut_short_is_not_counted() -> None:
    loop = Loop()
    for _ in range(3):
        loop.batch()
        loop.forward()
        loop.step()
    loop.log.finish("ValueError")
    assert loop.log.num_steps == 2
    assert loop.log.ended_by == "ValueError"


def test_who_asked_is_told_of_each_step_and_may_stop_the_loop() -> None:
    seen: list[int] = []

    def stop(record: StepRecord) -> None:
        seen.append(record.number)
        if record.number == 2:
            raise StopAsyncIteration

    loop = Loop(stop)
    with pytest.raises(StopAsyncIteration):
        while True:
            loop.batch()
            loop.forward()
            loop.step()
    loop.log.finish()
    assert seen == [0, 1, 2]
    assert loop.log.num_steps == 3


def test_what_is_kept_is_bounded_however_long_the_run() -> None:
    loop = Loop()
    loop.log.set_device("cpu")
    for _ in range(5000):
        loop.batch()
        loop.forward()
        loop.step()
    loop.log.finish()
    log = loop.log
    assert log.num_steps == 5000
    assert log.sums.num_steps == 5000 - NUM_WARM_UP
    assert len(log.sums.sample) == 1024
    assert len(log.recent) == 256
    assert all(len(series.points) < 512 for series in log.memory)
    assert log.sums.calls[Phase.FORWARD] == 5000 - NUM_WARM_UP


def test_the_sample_is_drawn_from_the_whole_run() -> None:
    sums = Sums()
    for number in range(20_000):
        sums.add(StepRecord(number, 0, (1,) * len(Phase), (0,) * len(Phase), 0, 1))
    numbers = [record.number for record in sums.sample]
    mean, deviation = 10_000, 20_000 / math.sqrt(12 * len(numbers))
    assert abs(sum(numbers) / len(numbers) - mean) < 5 * deviation
    assert sums.ns == [20_000] * len(Phase)
