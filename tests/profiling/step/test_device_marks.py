"""Phases on a GPU's clock, with events that the test lets pass."""

from whet.profiling.step.device_marks import DeviceMarks
from whet.profiling.step.phases import Phase


class Gpu:
    """Reaches an event when the test says so. Events are recorded at the time its queue has come to."""

    def __init__(self) -> None:
        self.queued_ms = 0.0
        self.done_ms = 0.0
        self.num_events = 0
        self.num_waits = 0

    def event(self) -> "Event":
        self.num_events += 1
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = self.gpu.queued_ms

    def query(self) -> bool:
        return self.at_ms <= self.gpu.done_ms

    def synchronize(self) -> None:
        self.gpu.num_waits += 1
        self.gpu.done_ms = max(self.gpu.done_ms, self.at_ms)

    def elapsed_time(self, other: "Event") -> float:
        return other.at_ms - self.at_ms


def step(marks: DeviceMarks, gpu: Gpu, number: int, forward_ms: float, backward_ms: float) -> None:
    marks.begin()
    marks.mark(Phase.REST)
    for phase, ms in ((Phase.FORWARD, forward_ms), (Phase.BACKWARD, backward_ms)):
        marks.mark(Phase.REST)
        gpu.queued_ms += ms
        marks.mark(phase)
    marks.end(number)


def test_steps_are_read_once_the_gpu_has_passed_them_and_nobody_waits() -> None:
    gpu = Gpu()
    marks = DeviceMarks(gpu.event)
    for number in range(3):
        step(marks, gpu, number, 2.0, 5.0)
    assert marks.passed() == []
    gpu.done_ms = 14.0
    read = marks.passed()
    assert [number for number, _ in read] == [0, 1]
    for _, ns in read:
        assert ns[Phase.FORWARD] == 2_000_000
        assert ns[Phase.BACKWARD] == 5_000_000
        assert sum(ns) == 7_000_000
    assert gpu.num_waits == 0


def test_the_last_steps_are_waited_for_at_the_end() -> None:
    gpu = Gpu()
    marks = DeviceMarks(gpu.event)
    step(marks, gpu, 7, 1.0, 1.0)
    assert [number for number, _ in marks.passed(wait=True)] == [7]
    assert gpu.num_waits == 1


def test_events_are_used_again() -> None:
    gpu = Gpu()
    marks = DeviceMarks(gpu.event)
    for number in range(100):
        step(marks, gpu, number, 1.0, 1.0)
        gpu.done_ms = gpu.queued_ms
        marks.passed()
    assert gpu.num_events <= 10


def test_what_is_marked_outside_of_steps_is_forgotten() -> None:
    gpu = Gpu()
    marks = DeviceMarks(gpu.event)
    for _ in range(50):
        marks.mark(Phase.FORWARD)
        gpu.queued_ms += 1.0
    step(marks, gpu, 0, 2.0, 2.0)
    ((_, ns),) = marks.passed(wait=True)
    assert sum(ns) == 4_000_000


def test_a_step_without_end_takes_bounded_memory_and_is_left_out() -> None:
    gpu = Gpu()
    marks = DeviceMarks(gpu.event)
    marks.begin()
    for _ in range(50_000):
        marks.mark(Phase.SYNC)
    assert gpu.num_events <= 20_001
    marks.end(0)
    assert marks.passed(wait=True) == []
    step(marks, gpu, 1, 1.0, 1.0)
    assert [number for number, _ in marks.passed(wait=True)] == [1]
