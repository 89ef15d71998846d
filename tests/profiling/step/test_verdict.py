"""The verdict and its evidence, on steps that are known."""

import pytest

from whet.profiling.bounds import Bound
from whet.profiling.step.growth import Growth
from whet.profiling.step.log import StepRecord
from whet.profiling.step.phases import Phase
from whet.profiling.step.verdict import Facts, judge, split_steps

GROWS = Growth("heap", 2**20, (2.0**19, 2.0**21), 2**26, 2**30, 10, 73, True)
STEADY = Growth("heap", 3.0, (-10.0, 16.0), 100, 2**30, 10, 73, False)


def record(number: int = 0, loss: int = 0, device: dict[Phase, float] | None = None, **ms: float) -> StepRecord:
    """One step, from milliseconds by phase."""
    ns = tuple(int(ms.get(phase.name, 0) * 1e6) for phase in Phase)
    device_ns = None if device is None else tuple(int(device.get(phase, 0) * 1e6) for phase in Phase)
    return StepRecord(number, 0, ns, (1,) * len(Phase), loss, 1, device_ns)


def facts(*growth: Growth, loader: str = "", site: str = "", on_gpu: bool = False) -> Facts:
    return Facts(loader, lambda phase: site, growth, on_gpu)


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        ({"FORWARD": 4, "BACKWARD": 4, "OPTIMIZER": 2}, Bound.COMPUTE),
        ({"FORWARD": 5, "DATA": 5}, Bound.INPUT),
        ({"FORWARD": 5, "TRANSFER": 5}, Bound.INPUT),
        ({"FORWARD": 6, "DATA": 2, "TRANSFER": 2}, Bound.INPUT),
        ({"FORWARD": 5, "SYNC": 5}, Bound.SYNC),
        ({"FORWARD": 5, "REST": 5}, Bound.LOOP),
        ({"FORWARD": 4, "DATA": 3, "SYNC": 3.5}, Bound.SYNC),
        ({"FORWARD": 8, "DATA": 2}, Bound.COMPUTE),
        ({"FORWARD": 5.5, "DATA": 1.5, "SYNC": 1.5, "REST": 1.5}, Bound.COMPUTE),
    ],
)
def test_the_bound_is_what_takes_at_least_a_quarter_of_the_step(ms: dict[str, float], expected: Bound) -> None:
    parts = split_steps([record(number, **ms) for number in range(10)])
    assert sum(part.share for part in parts) == pytest.approx(1)
    verdict, bound, evidence = judge(parts, facts())
    assert verdict is bound is expected
    assert evidence


def test_what_lies_between_forward_and_backward_is_compute() -> None:
    parts = split_steps([record(FORWARD=2, BACKWARD=2, REST=6, loss=5_500_000)] * 5)
    assert judge(parts, facts())[1] is Bound.COMPUTE


def test_growing_memory_comes_first_and_the_bound_is_still_told() -> None:
    parts = split_steps([record(FORWARD=1, DATA=9)] * 5)
    verdict, bound, evidence = judge(parts, facts(GROWS))
    assert verdict is Bound.MEMORY_GROWING
    assert bound is Bound.INPUT
    assert evidence[0].startswith("the process's heap grows by 1.05 MB a step (95%: 524 kB–2.10 MB), 67.1 MB")
    assert "a gigabyte every 954 steps" in evidence[0]
    assert "90% of each step" in evidence[1]


def test_evidence_says_how_much_and_how_sure_and_why() -> None:
    parts = split_steps([record(number, FORWARD=5, DATA=15) for number in range(20)])
    _, _, evidence = judge(parts, facts(STEADY, loader="num_workers is 0"))
    assert evidence[0] == (
        "75% of each step (95%: 75–75%), 15.0 of 20.0 ms, is waiting for data; without it a step could be up to "
        "4.0x faster (num_workers is 0)"
    )
    assert evidence[1].startswith("the process's heap does not grow: 3 B a step")
    little = Growth("heap", 87.0, (9.0, 165.0), 6_000, 2**30, 22, 98, False)
    _, _, evidence = judge(split_steps([record(FORWARD=5)] * 5), facts(little))
    assert evidence[1].startswith("the process's heap hardly grows: 87 B a step (95%: 9 B to 165 B)")


def test_one_slow_step_decides_nothing_and_is_named() -> None:
    records = [record(number, FORWARD=10, DATA=0.5) for number in range(99)] + [record(99, FORWARD=10, DATA=900)]
    verdict, _, evidence = judge(split_steps(records), facts())
    assert verdict is Bound.COMPUTE
    assert any("mostly in a few slow steps (4.8% of a median step)" in sentence for sentence in evidence)


def test_on_a_gpu_its_own_clock_decides() -> None:
    """The host runs ahead and waits in one place for all of it; the GPU is at work all the time."""
    at_work = {Phase.FORWARD: 4.0, Phase.BACKWARD: 8.0, Phase.OPTIMIZER: 1.0}
    busy = [record(n, FORWARD=1, BACKWARD=1, SYNC=11, device=at_work) for n in range(9)]
    assert judge(split_steps(busy), facts(on_gpu=True))[1] is Bound.COMPUTE
    starved = [record(n, FORWARD=1, BACKWARD=1, SYNC=11, device=at_work | {Phase.DATA: 9.0}) for n in range(9)]
    _, bound, evidence = judge(split_steps(starved), facts(on_gpu=True))
    assert bound is Bound.INPUT
    assert "the GPU waits for data" in evidence[0]
