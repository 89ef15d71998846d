"""The clock of phases, with a time that the test moves: every nanosecond goes to exactly one phase."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from whet.profiling.step.phases import Phase, PhaseClock


class Time:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.ns = 1000

    def __call__(self) -> int:
        return self.ns


def running() -> tuple[PhaseClock, Time]:
    time = Time()
    clock = PhaseClock(time)
    clock.is_on = True
    return clock, time


@given(st.lists(st.one_of(st.integers(0, 10**9), st.sampled_from(list(Phase)), st.none()), max_size=60))
def test_the_phases_add_up_to_the_time_that_passed(events: list[int | Phase | None]) -> None:
    clock, time = running()
    expected = [0] * len(Phase)
    open_phases = [Phase.REST]
    for event in events:
        if event is None:
            if len(open_phases) > 1:
                open_phases.pop()
                clock.leave()
        elif isinstance(event, Phase):
            if clock.accepts(event):
                open_phases.append(event)
                clock.enter(event)
        else:
            time.ns += event
            expected[open_phases[-1]] += event
    taken = clock.take()
    assert list(taken.ns) == expected
    assert sum(taken.ns) == time.ns - 1000


def test_a_nested_phase_takes_its_time_from_the_outer_one() -> None:
    clock, time = running()
    clock.enter(Phase.FORWARD)
    time.ns += 5
    clock.enter(Phase.SYNC)
    time.ns += 7
    clock.leave()
    time.ns += 11
    clock.leave()
    taken = clock.take()
    assert taken.ns[Phase.FORWARD] == 16
    assert taken.ns[Phase.SYNC] == 7
    assert taken.calls[Phase.FORWARD] == taken.calls[Phase.SYNC] == 1


def test_what_a_phase_is_made_of_is_no_phase_of_its_own() -> None:
    clock, _ = running()
    for outer, inner, accepted in [
        (Phase.FORWARD, Phase.FORWARD, False),  # modules within modules
        (Phase.BACKWARD, Phase.FORWARD, False),  # recomputed activations
        (Phase.DATA, Phase.FORWARD, False),  # transforms that are modules
        (Phase.DATA, Phase.TRANSFER, True),
        (Phase.OPTIMIZER, Phase.BACKWARD, True),  # the closure of LBFGS
        (Phase.BACKWARD, Phase.OPTIMIZER, True),  # the optimiser in hooks of the backward pass
        (Phase.FORWARD, Phase.SYNC, True),
    ]:
        clock.enter(outer)
        assert clock.accepts(inner) is accepted, (outer, inner)
        clock.leave()


def test_another_thread_is_not_listened_to_nor_is_anyone_once_it_is_off() -> None:
    clock, _ = running()
    heard: list[bool] = []
    thread = threading.Thread(target=lambda: heard.append(clock.accepts(Phase.FORWARD)))
    thread.start()
    thread.join()
    assert heard == [False]
    assert clock.accepts(Phase.FORWARD)
    clock.is_on = False
    assert not clock.accepts(Phase.FORWARD)


def test_what_lies_between_forward_and_backward_is_told_from_the_rest() -> None:
    clock, time = running()

    def phase(which: Phase, ns: int) -> None:
        clock.enter(which)
        time.ns += ns
        clock.leave()

    time.ns += 1  # before the forward pass: not the loss
    phase(Phase.FORWARD, 10)
    time.ns += 100
    phase(Phase.FORWARD, 10)  # a second model of the same loss
    time.ns += 200
    phase(Phase.SYNC, 5)  # nested in nothing, and not rest
    phase(Phase.BACKWARD, 10)
    time.ns += 1000
    taken = clock.take()
    assert taken.loss_ns == 300
    assert taken.ns[Phase.REST] == 1301


def test_a_forward_pass_without_a_backward_one_has_no_loss() -> None:
    clock, time = running()
    clock.enter(Phase.FORWARD)
    clock.leave()
    time.ns += 50
    assert clock.take().loss_ns == 0


def test_lines_that_wait_are_remembered_with_their_time() -> None:
    clock, time = running()
    for _ in range(3):
        clock.enter(Phase.SYNC)
        time.ns += 4
        clock.leave_at("Tensor.item")
    ((phase, line, call),) = clock.sites
    assert (phase, call) == (Phase.SYNC, "Tensor.item")
    assert line.file == __file__
    assert line.text == 'clock.leave_at("Tensor.item")'
    assert clock.sites[phase, line, call] == [12, 3]


def test_a_reset_starts_anew_in_the_phase_that_runs() -> None:
    clock, time = running()
    clock.enter(Phase.OPTIMIZER)
    time.ns += 9
    clock.reset()
    time.ns += 2
    clock.leave()
    taken = clock.take()
    assert sum(taken.ns) == taken.ns[Phase.OPTIMIZER] == 2
