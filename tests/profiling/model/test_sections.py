"""Sections: the tree, its sums, and what a clock of our own says."""

import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.profiling.model.sections import SectionCost, Sections, Timer


def by_path(sections: Sections) -> dict[tuple[str, ...], SectionCost]:
    return {cost.path: cost for cost in sections.costs()}


def test_nested_sections_make_a_tree_in_the_order_they_ran() -> None:
    sections = Sections()
    for _ in range(3):
        with sections.section("step"):
            with sections.section("forward"):
                time.sleep(0.004)
            with sections.section("backward"):
                time.sleep(0.002)
    paths = [cost.path for cost in sections.costs()]
    assert paths == [("step",), ("step", "forward"), ("step", "backward")]
    found = by_path(sections)
    step, forward, backward = (found[path] for path in paths)
    assert (step.calls, forward.calls, backward.calls) == (3, 3, 3)
    assert forward.total_s >= 0.012 and backward.total_s >= 0.006
    assert step.total_s >= forward.total_s + backward.total_s
    assert step.self_s == pytest.approx(step.total_s - forward.total_s - backward.total_s, abs=1e-9)
    assert forward.longest_s <= forward.total_s
    assert (forward.name, forward.depth) == ("forward", 2)


def test_waiting_is_told_from_computing() -> None:
    sections = Sections()
    with sections.section("wait"):
        time.sleep(0.05)
    with sections.section("compute"):
        ends = time.thread_time() + 0.05
        while time.thread_time() < ends:
            pass
    found = by_path(sections)
    assert found["wait",].waited_s > 0.8 * found["wait",].total_s
    assert found["compute",].cpu_s == pytest.approx(0.05, rel=0.2)


class Ledger:
    """Memory as a test would have it."""

    held = 0

    def __call__(self) -> int:
        return self.held


def test_memory_grown_and_peak_by_section() -> None:
    memory = Ledger()
    sections = Sections(read_bytes=memory, read_again_ns=0)
    with sections.section("outer"):
        memory.held = 100
        with sections.section("inner"):
            memory.held = 700
            sections.note_bytes(700)
            memory.held = 150
    memory.held = 0
    with sections.section("outer"):
        pass
    found = by_path(sections)
    assert found["outer", "inner"].grown_bytes == 50
    assert found["outer", "inner"].peak_bytes == 700
    assert found["outer",].grown_bytes == 150
    assert found["outer",].peak_bytes == 700  # a section's peak is at least its parts'


def test_memory_is_not_read_again_at_once() -> None:
    reads = []
    sections = Sections(read_bytes=lambda: len(reads.append(1) or reads), read_again_ns=10**12)  # type: ignore[func-returns-value]
    for _ in range(100):
        with sections.section("a"):
            pass
    assert len(reads) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_sections_beyond_the_depth_count_with_the_one_around_them(depth: int) -> None:
    sections = Sections(depth=depth)
    names = ("a", "b", "c")
    with sections.section("a"), sections.section("b"), sections.section("c"):
        time.sleep(0.001)
    with sections.section("a"):
        pass
    assert list(by_path(sections)) == [names[:n] for n in range(1, depth + 1)]
    assert by_path(sections)["a",].calls == 2


def test_one_name_may_be_inside_itself_and_under_two_parents() -> None:
    sections = Sections()
    entry = sections.section("a")
    with entry, entry:
        pass
    with sections.section("b"), entry:
        pass
    assert {path: cost.calls for path, cost in by_path(sections).items()} == {
        ("a",): 1, ("a", "a"): 1, ("b",): 1, ("b", "a"): 1,
    }  # fmt: skip


def test_a_section_that_raises_is_counted_and_closed() -> None:
    sections = Sections()
    with pytest.raises(ValueError, match="mine"), sections.section("a"), sections.section("b"):
        raise ValueError("mine")
    with sections.section("c"):
        pass
    assert list(by_path(sections)) == [("a",), ("a", "b"), ("c",)]


def test_leaving_what_was_not_entered_does_no_harm() -> None:
    sections = Sections()
    sections.leave()
    with sections.section("a"):
        pass
    assert list(by_path(sections)) == [("a",)]


def test_a_decorated_function_is_a_section() -> None:
    sections = Sections()

    @sections.section("work")
    def work(n: int) -> int:
        """Doc."""
        return n + 1

    assert [work(1), work(2)] == [2, 3]
    assert work.__doc__ == "Doc."
    assert by_path(sections)["work",].calls == 2


def test_each_thread_has_a_tree_of_its_own() -> None:
    sections = Sections()

    def run() -> None:
        for _ in range(50):
            with sections.section("inside"):
                time.sleep(0)

    with sections.section("main"):
        threads = [threading.Thread(target=run, name=f"worker-{i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [(cost.thread, cost.path, cost.calls) for cost in sections.costs()]
    assert ("", ("main",), 1) in found
    assert {thread for thread, path, calls in found if path == ("inside",) and calls == 50} == {
        "worker-0", "worker-1", "worker-2",
    }  # fmt: skip


TREES = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.sampled_from("abc"), inner), max_size=3), max_leaves=12
)


@given(tree=TREES, depth=st.none() | st.integers(1, 4))
def test_any_tree_adds_up(tree: list[Any], depth: int | None) -> None:
    sections = Sections(depth=depth)
    expected: Counter[tuple[str, ...]] = Counter()

    def run(nodes: list[Any], path: tuple[str, ...]) -> None:
        for name, inner in nodes:
            here = (*path, name)
            if depth is None or len(here) <= depth:
                expected[here] += 1
            with sections.section(name):
                run(inner, here)

    run(tree, ())
    found = by_path(sections)
    assert {path: cost.calls for path, cost in found.items()} == dict(expected)
    for path, cost in found.items():
        children = [c.total_s for p, c in found.items() if p[:-1] == path]
        assert cost.total_s + 1e-9 >= sum(children)
        assert cost.self_s + sum(children) == pytest.approx(cost.total_s, abs=1e-9)


class FakeEvent:
    """A CUDA event that is recorded at a time of the test's choosing, in ms."""

    now_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_ms = FakeEvent.now_ms

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "FakeEvent") -> float:
        return other.at_ms - self.at_ms


def test_gpu_time_and_nvtx_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []
    monkeypatch.setattr("torch.cuda.Event", FakeEvent)
    monkeypatch.setattr("torch.cuda.nvtx.range_push", ranges.append)
    monkeypatch.setattr("torch.cuda.nvtx.range_pop", lambda: ranges.append("pop"))
    sections = Sections(cuda=True, nvtx=True)
    for i in range(5000):  # more than are kept waiting
        with sections.section("a"):
            FakeEvent.now_ms += 2.0
            if not i:
                with sections.section("b"):
                    FakeEvent.now_ms += 1.0
    found = by_path(sections)
    assert found["a",].gpu_s == pytest.approx(10.001)
    assert found["a", "b"].gpu_s == pytest.approx(0.001)
    assert ranges[:4] == ["a", "b", "pop", "pop"]


def test_no_gpu_is_none_not_zero() -> None:
    sections = Sections()
    with sections.section("a"):
        pass
    assert by_path(sections)["a",].gpu_s is None


def test_timer() -> None:
    timer = Timer("lookup")
    assert timer.cost() is None
    for _ in range(600):
        with timer:
            pass
    with timer:
        time.sleep(0.01)
    cost = timer.cost()
    assert cost is not None
    assert cost.calls == 601
    assert cost.total_s >= 0.01
    assert cost.p99_ms is not None and cost.median_ms <= cost.p90_ms <= cost.p99_ms < 10


def test_a_timer_keeps_its_last_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.profiling.model.sections._MOST_SAMPLES", 4)
    times = iter(range(0, 1000, 1))
    monkeypatch.setattr("whet.profiling.model.sections.time.perf_counter_ns", lambda: next(times))
    timer = Timer("x")
    for _ in range(10):
        with timer:
            pass
    cost = timer.cost()
    assert cost is not None and cost.calls == 10 and cost.p99_ms is None
    assert cost.median_ms == pytest.approx(1e-6)
