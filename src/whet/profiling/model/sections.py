"""Measure named, nested sections of a program: calls, wall time, CPU time, GPU time and memory.

A section costs about 2 µs: two readings of the wall clock, two of the thread's CPU clock, and one of the memory unless
it was read less than 25 µs before. benchmarks/overhead.py measures this cost.
"""

import functools
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from whet.measure.stats import percentile
from whet.ui.figures import MIN_SAMPLES_FOR_P99

P = ParamSpec("P")
R = TypeVar("R")

_READ_AGAIN_NS = 25_000  # reading memory is slow for a section; a program touches at most 0.5 MB in this time
_MOST_PENDING = 4096  # pairs of CUDA events that wait to be read
_MOST_SAMPLES = 65_536  # samples that one timer keeps


class _Node:
    """Hold the totals of one section under one parent, on one thread.

    A node runs at most once at a time: a section that is entered inside itself gets a node of its own.
    """

    __slots__ = (
        "calls", "children", "cpu_ns", "gpu_ms", "grown_bytes", "longest_ns", "name", "parent", "peak_bytes", "range",
        "start_bytes", "start_cpu_ns", "start_event", "start_ns", "wall_ns",
    )  # fmt: skip

    def __init__(self, name: str, parent: "_Node | None") -> None:
        self.name = name
        self.parent = parent
        self.children: dict[str, _Node] = {}
        self.calls = self.wall_ns = self.cpu_ns = self.longest_ns = 0
        self.gpu_ms = 0.0
        self.grown_bytes = self.peak_bytes = 0
        self.start_ns = self.start_cpu_ns = self.start_bytes = 0
        self.start_event: Any = None
        self.range: Any = None


class _Stack:
    """Hold which section one thread is in. `beyond` counts the sections entered below the depth limit."""

    __slots__ = ("beyond", "depth", "root", "thread", "top")

    def __init__(self) -> None:
        self.thread = threading.current_thread().name
        self.root = self.top = _Node("", None)
        self.depth = self.beyond = 0


class _ThreadStack(threading.local):
    def __init__(self, stacks: list[_Stack]) -> None:
        self.stack = _Stack()
        stacks.append(self.stack)


@dataclass(frozen=True)
class SectionCost:
    """Describe one section under one parent, over all its calls.

    Attributes:
        path: The names of the sections from the outermost to this one.
        total_s: Wall time, sections inside included.
        self_s: Wall time, sections inside left out.
        cpu_s: CPU time of its thread. The rest of the wall time it waited: for data, locks, a GPU or a core.
        self_cpu_s: The same, sections inside left out.
        gpu_s: Time between the section's first and last mark on the stream; None without a GPU.
        grown_bytes: What the process (or the allocator) held more at its end than at its start, summed over its calls.
        peak_bytes: The most that was seen held while it ran.
        thread: The name of its thread; "" for the thread that created the sections.
    """

    path: tuple[str, ...]
    calls: int
    total_s: float
    self_s: float
    longest_s: float
    cpu_s: float
    self_cpu_s: float
    gpu_s: float | None
    grown_bytes: int
    peak_bytes: int
    thread: str = ""

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def waited_s(self) -> float:
        """Return how long the section itself waited, sections inside left out."""
        return max(0.0, self.self_s - self.self_cpu_s)

    @property
    def depth(self) -> int:
        """Return how deep the section is nested; 1 for the outermost."""
        return len(self.path)


@dataclass(frozen=True)
class TimerCost:
    """Describe one timer. `p99_ms` is None if there are too few samples for a 99th percentile."""

    name: str
    calls: int
    total_s: float
    median_ms: float
    p90_ms: float
    p99_ms: float | None


class Sections:
    """Measure a tree of named sections for each thread.

    Args:
        depth: Sections nested deeper are counted as part of the one around them.
        read_bytes: Returns the memory held now.
        read_again_ns: Memory is not read again if the last reading is younger than this.
        cuda: Whether to mark each section on the current CUDA stream.
        nvtx: Whether to emit NVTX ranges for Nsight.
    """

    def __init__(
        self,
        *,
        depth: int | None = None,
        read_bytes: Callable[[], int] | None = None,
        read_again_ns: int = _READ_AGAIN_NS,
        cuda: bool = False,
        nvtx: bool = False,
    ) -> None:
        self.annotates = False  # whether sections also become ranges in torch.profiler's trace
        self._depth = 2**31 if depth is None else depth
        self._read = read_bytes
        self._read_again_ns = read_again_ns
        self._bytes = 0
        self._bytes_ns = -(2**62)
        self._cuda = cuda
        self._nvtx = nvtx
        self._pending: list[tuple[_Node, Any, Any]] = []
        self._stacks: list[_Stack] = []
        self._lane = _ThreadStack(self._stacks)
        self._entries: dict[str, SectionEntry] = {}
        self._plain = not (cuda or nvtx)

    def section(self, name: str) -> "SectionEntry":
        """Return the section called `name`, for `with sections.section("forward"):` or as a decorator."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = SectionEntry(self, name)
        return entry

    def enter(self, name: str) -> None:
        """Start a section inside the one that runs on this thread."""
        stack = self._lane.stack
        if stack.depth >= self._depth:
            stack.beyond += 1
            return
        top = stack.top
        node = top.children.get(name)
        if node is None:
            node = top.children[name] = _Node(name, top)
        stack.depth += 1
        stack.top = node
        if self._read is not None:
            now_ns = time.perf_counter_ns()
            if now_ns - self._bytes_ns > self._read_again_ns:
                self._bytes, self._bytes_ns = self._read(), now_ns
            node.start_bytes = self._bytes
        if self.annotates or not self._plain:
            self._mark_start(node)
        node.start_cpu_ns = time.thread_time_ns()
        node.start_ns = time.perf_counter_ns()

    def leave(self) -> None:
        """End the section that runs on this thread."""
        now_ns = time.perf_counter_ns()
        stack = self._lane.stack
        if stack.beyond:
            stack.beyond -= 1
            return
        node = stack.top
        if node.parent is None:  # the section was entered before the profile began, or is left a second time
            return
        node.cpu_ns += time.thread_time_ns() - node.start_cpu_ns
        wall_ns = now_ns - node.start_ns
        node.wall_ns += wall_ns
        node.calls += 1
        if wall_ns > node.longest_ns:
            node.longest_ns = wall_ns
        stack.top = node.parent
        stack.depth -= 1
        if node.range is not None or node.start_event is not None or self._nvtx:
            self._mark_end(node)
        if self._read is not None:
            if now_ns - self._bytes_ns > self._read_again_ns:
                self._bytes, self._bytes_ns = self._read(), now_ns
            held = self._bytes
            node.grown_bytes += held - node.start_bytes
            most = held if held > node.start_bytes else node.start_bytes
            if most > node.peak_bytes:
                node.peak_bytes = most

    def note_bytes(self, held_bytes: int) -> None:
        """Raise the peak of every running section to a reading of the memory that was taken elsewhere."""
        for stack in list(self._stacks):
            node = stack.top
            if node.parent is not None and held_bytes > node.peak_bytes:
                node.peak_bytes = held_bytes

    def costs(self) -> tuple[SectionCost, ...]:
        """Return every section that has ended at least once, parents first, in the order of their first entry."""
        self._read_events(wait=True)
        found: list[SectionCost] = []
        for i, stack in enumerate(list(self._stacks)):
            for node in list(stack.root.children.values()):
                found.extend(self._walk(node, (), stack.thread if i else ""))
        return tuple(found)

    def _walk(self, node: _Node, path: tuple[str, ...], thread: str) -> Iterator[SectionCost]:
        path = (*path, node.name)
        children = list(node.children.values())
        if node.calls:
            yield SectionCost(
                path=path,
                calls=node.calls,
                total_s=node.wall_ns / 1e9,
                self_s=max(0, node.wall_ns - sum(child.wall_ns for child in children)) / 1e9,
                longest_s=node.longest_ns / 1e9,
                cpu_s=node.cpu_ns / 1e9,
                self_cpu_s=max(0, node.cpu_ns - sum(child.cpu_ns for child in children)) / 1e9,
                gpu_s=node.gpu_ms / 1e3 if self._cuda else None,
                grown_bytes=node.grown_bytes,
                peak_bytes=max(inner.peak_bytes for inner in _nodes(node)),
                thread=thread,
            )
        for child in children:
            yield from self._walk(child, path, thread)

    def _mark_start(self, node: _Node) -> None:
        if self.annotates:
            node.range = torch.profiler.record_function(node.name)
            node.range.__enter__()
        if self._nvtx:
            torch.cuda.nvtx.range_push(node.name)
        if self._cuda:
            node.start_event = torch.cuda.Event(enable_timing=True)
            node.start_event.record()

    def _mark_end(self, node: _Node) -> None:
        if node.start_event is not None:
            stop = torch.cuda.Event(enable_timing=True)
            stop.record()
            self._pending.append((node, node.start_event, stop))
            node.start_event = None
            if len(self._pending) >= _MOST_PENDING:
                self._read_events(wait=False)
        if self._nvtx:
            torch.cuda.nvtx.range_pop()
        if node.range is not None:
            node.range.__exit__(None, None, None)
            node.range = None

    def _read_events(self, *, wait: bool) -> None:
        """Add up the pairs of events that the GPU has passed. With `wait`, wait for all pairs."""
        pending, self._pending = self._pending, []
        for place, (node, start, stop) in enumerate(pending):
            if wait or len(pending) - place > _MOST_PENDING:
                stop.synchronize()
            elif not stop.query():
                self._pending = pending[place:] + self._pending
                return
            node.gpu_ms += start.elapsed_time(stop)


class SectionEntry:
    """Enter and leave one named section any number of times, also nested, as a context manager or a decorator."""

    __slots__ = ("_enter", "_leave", "_name")

    def __init__(self, sections: Sections, name: str) -> None:
        self._enter = sections.enter
        self._leave = sections.leave
        self._name = name

    def __enter__(self) -> None:
        self._enter(self._name)

    def __exit__(self, *exception: object) -> None:
        self._leave()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return wrapped


class Timer:
    """Measure wall time alone, at about 0.5 µs a call, for code that runs too often for a section: `with timer:`.

    A timer keeps its last 65,536 samples. Don't enter it inside itself, nor from two threads at once.
    """

    __slots__ = ("_samples_ns", "_start_ns", "calls", "name", "total_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = self.total_ns = 0
        self._start_ns = 0
        self._samples_ns = array("q")

    def __enter__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        taken_ns = time.perf_counter_ns() - self._start_ns
        if self.calls < _MOST_SAMPLES:
            self._samples_ns.append(taken_ns)
        else:
            self._samples_ns[self.calls % _MOST_SAMPLES] = taken_ns
        self.calls += 1
        self.total_ns += taken_ns

    def cost(self) -> TimerCost | None:
        """Return the timer's totals, or None if it was never used."""
        if not self.calls:
            return None
        samples_ms = [ns / 1e6 for ns in self._samples_ns]
        return TimerCost(
            name=self.name,
            calls=self.calls,
            total_s=self.total_ns / 1e9,
            median_ms=percentile(samples_ms, 50),
            p90_ms=percentile(samples_ms, 90),
            p99_ms=percentile(samples_ms, 99) if len(samples_ms) >= MIN_SAMPLES_FOR_P99 else None,
        )


def _nodes(node: _Node) -> Iterator[_Node]:
    yield node
    for child in list(node.children.values()):
        yield from _nodes(child)
