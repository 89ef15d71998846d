"""Profile a block of code with `with whet.profile() as p:`. Its sections are named by `p.section("name")`."""

import json
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console

from whet.errors import OptionError, OutputError, named_reason
from whet.files import write_whole
from whet.measure.device import check_usable
from whet.measure.machine import Limits, describe
from whet.profiling.model import chrome
from whet.profiling.model.allocations import AllocationTracker, TensorMemory
from whet.profiling.model.leaks import LEAST_STEPS, Leak
from whet.profiling.model.live_memory import inspect_memory
from whet.profiling.model.operators import Operators, operators_of, start_tracer, stop_tracer
from whet.profiling.model.referrers import LiveTensor
from whet.profiling.model.report import Report, as_json
from whet.profiling.model.sections import SectionEntry, Sections, Timer
from whet.profiling.model.show import show_report
from whet.profiling.model.timeline import Timeline, cuda_fragmentation
from whet.profiling.model.verdict import BlockFacts, block_verdict

PROFILE = "profile.json"
MEMORY_HISTORY = "memory.pickle"
_MOST_HISTORY = 100_000  # entries of the CUDA allocator's history


def profile(
    *misplaced: object,
    depth: int | None = None,
    operators: bool = False,
    memory: bool = False,
    active_steps: int = 3,
    nvtx: bool | None = None,
    device: str | None = None,
    limits: Limits | None = None,
    name: str = "block",
) -> "Session":
    """Profile a block of code: `with whet.profile() as p:`, with `p.section("name")` around its parts.

    By default, it takes times and the memory of the process, at some 2 µs a section. `operators` and `memory` slow the
    block down, so take times without them. If the block raises, the exception propagates; what was measured until then
    is kept, and the report says that it is partial.

    Args:
        misplaced: Nothing. A model or a target here is refused, with what to write instead.
        depth: Sections nested deeper are counted as part of the one around them.
        operators: Trace operators with their shapes. The whole block is traced or, if `p.step()` is called at the end
            of each step, `active_steps` steps after the first.
        memory: Watch every tensor: the largest ones alive, the lines that allocated them and, with `p.step()`, what
            grows from step to step.
        active_steps: The number of steps to trace.
        nvtx: Emit sections as NVTX ranges for Nsight. None means: if CUDA is in use.
        device: "cpu" or "cuda". None means "cuda" if this process uses CUDA already.
        limits: The machine's limits. With them, the verdict says how far the block is from them.
        name: The name of the block in the report.

    Raises:
        OptionError: An option is out of range, or there is no CUDA device.
    """
    if misplaced:
        raise OptionError(
            "whet.profile times a block of code: with whet.profile() as p: model(x). What bounds a model, "
            "whet.profile_target('FILE.py:FUNCTION') says; what bounds a training loop, whet.watch"
        )
    if depth is not None and depth < 1:
        raise OptionError(f"depth must be 1 or more, not {depth}")
    if active_steps < 1:
        raise OptionError(f"active_steps must be 1 or more, not {active_steps}")
    if device not in (None, "cpu", "cuda"):
        raise OptionError(f"device must be 'cpu' or 'cuda', not {device!r}")
    if device is not None:
        check_usable(device, "device")
    return Session(depth, operators, memory, active_steps, nvtx, device, limits, name)


class Session:
    """Take a profile of a `with` block. Afterwards, `report`, `show()`, `to_json()` and `save()` give what it found."""

    def __init__(
        self,
        depth: int | None,
        operators: bool,
        memory: bool,
        active_steps: int,
        nvtx: bool | None,
        device: str | None,
        limits: Limits | None,
        name: str,
    ) -> None:
        self._options = (depth, nvtx)
        self._name = name
        self._limits = limits
        self._active_steps = active_steps
        self._wants_operators = operators
        self._cuda = torch.cuda.is_initialized() if device is None else device == "cuda"
        self._timers: dict[str, Timer] = {}
        self._tracker = AllocationTracker(changed=self._note_bytes) if memory else None
        self._timeline = Timeline("cuda" if self._cuda else "cpu", seen=None if memory else self._note_bytes)
        self._sections = self._new_sections()
        self._tracer: torch.profiler.profile | None = None
        self._traced_from_s = self._traced_s = 0.0
        self._own = _Times()  # the time of starting and stopping the tracer, which is not the block's
        self._stopped: torch.profiler.profile | None = None
        self._trace: tuple[bytes, int] | None = None
        self._history: bytes | None = None
        self._num_steps = 0
        self._began: _Times | None = None
        self._report: Report | None = None

    def __enter__(self) -> "Session":
        if self._began is not None:
            raise OptionError("a profile can be taken only once: call whet.profile() again for another one")
        if self._cuda:
            torch.cuda.synchronize()
            if self._tracker is not None:
                torch.cuda.memory._record_memory_history(max_entries=_MOST_HISTORY)
        self._timeline.start()
        if self._tracker is not None:
            self._tracker.__enter__()  # type: ignore[no-untyped-call]
        if self._wants_operators:
            self._start_tracing()
        self._own = _Times()
        self._began = _Times.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._began is not None
        if self._cuda:
            torch.cuda.synchronize()
        took = _Times.now() - self._began - self._own
        self._stop_tracing()
        if self._tracker is not None:
            self._tracker.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        partial = "" if error is None else f"the block raised {named_reason(error)}"
        self._report = self._found(took.wall_s, took.cpu_s, min(took.wall_s, took.thread_s), partial)

    def _found(self, wall_s: float, cpu_s: float, thread_s: float, partial: str) -> Report:
        """Build the report, once all instruments except the timeline have been removed."""
        tensors: TensorMemory | None = None
        live: tuple[LiveTensor, ...] = ()
        leaks: tuple[Leak, ...] | None = None
        if self._tracker is not None:
            tensors = self._tracker.memory()
            live, leaks = inspect_memory(self._tracker)
        memory = self._timeline.stop()
        fragmentation = cuda_fragmentation() if self._cuda else None
        if self._cuda and self._tracker is not None:
            self._history = _memory_history()
        sections = self._sections.costs()
        operators = self._read_tracer()
        facts = BlockFacts(
            wall_s=wall_s,
            cpu_s=cpu_s,
            thread_s=thread_s,
            cores=describe().cores,
            on_gpu=self._cuda,
            sections=sections,
            operators=operators,
            leaks=leaks or (),
            memory_watched=self._tracker is not None,
        )
        return Report(
            name=self._name,
            device="cuda" if self._cuda else "cpu",
            partial=partial,
            verdict=block_verdict(facts, self._limits),
            wall_s=wall_s,
            cpu_s=cpu_s,
            num_steps=self._num_steps,
            sections=sections,
            timers=tuple(cost for timer in self._timers.values() if (cost := timer.cost()) is not None),
            instrumented=self._wants_operators or self._tracker is not None,
            operators=operators,
            memory=memory,
            tensors=tensors,
            largest=live,
            leaks=leaks,
            fragmentation=fragmentation,
            notes=self._notes(),
            commands=nsight_commands(shlex.join(sys.argv)) if self._cuda and Path(sys.argv[0]).is_file() else (),
        )

    def section(self, name: str) -> SectionEntry:
        """Return the section called `name`, for `with p.section("forward"):` or as a decorator."""
        return self._sections.section(name)

    def timer(self, name: str) -> Timer:
        """Return the timer called `name`: `with p.timer("lookup"):` measures code that runs too often for a section."""
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = Timer(name)
        return timer

    def step(self) -> None:
        """End a step of the loop. Growth is measured from step to step, and the tracer runs for some steps only."""
        self._num_steps += 1
        if self._tracker is not None:
            self._tracker.step()
        if not self._wants_operators:
            return
        if self._num_steps == 1:  # the first step warms up compilers, allocators and caches
            self._stop_tracing()
            self._start_tracing()
        elif self._num_steps == 1 + self._active_steps:
            self._stop_tracing()

    @property
    def report(self) -> Report:
        """Return what was found.

        Raises:
            OptionError: The block has not ended.
        """
        if self._report is None:
            raise OptionError("the profile is not finished: read it after the `with` block")
        return self._report

    def _repr_html_(self) -> str | None:
        return None if self._report is None else self._report._repr_html_()

    def show(self, console: Console | None = None) -> None:
        show_report(console or Console(highlight=False), self.report)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict."""
        return as_json(self.report)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(self.as_dict())

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write the report to profile.json in a directory. Each file appears whole or not at all.

        With operators, trace.json.gz for ui.perfetto.dev is written too; with memory on CUDA, memory.pickle for
        pytorch.org/memory_viz.

        Raises:
            OutputError: A file cannot be written.
        """
        contents: dict[str, str | bytes] = {PROFILE: json.dumps(self.as_dict(), indent=1) + "\n"}
        if self._trace is not None:
            contents[chrome.FILE] = self._trace[0]
        if self._history is not None:
            contents[MEMORY_HISTORY] = self._history
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
        for file, content in contents.items():
            write_whole(folder / file, content)
        return [folder / file for file in contents]

    def _new_sections(self) -> Sections:
        depth, nvtx = self._options
        tracker = self._tracker
        uses_nvtx = self._cuda if nvtx is None else nvtx and self._cuda
        if tracker is not None:
            return Sections(
                depth=depth, read_bytes=lambda: tracker.held_bytes, read_again_ns=0, cuda=self._cuda, nvtx=uses_nvtx
            )
        read = torch.cuda.memory_allocated if self._cuda else self._timeline.read_rss
        return Sections(depth=depth, read_bytes=read, cuda=self._cuda, nvtx=uses_nvtx)

    def _note_bytes(self, held_bytes: int) -> None:
        self._sections.note_bytes(held_bytes)

    def _start_tracing(self) -> None:
        began = _Times.now()
        self._tracer = start_tracer(cuda=self._cuda)
        self._sections.annotates = True
        self._own += _Times.now() - began
        self._traced_from_s = time.perf_counter()

    def _stop_tracing(self) -> None:
        """Stop the tracer if it runs. Its trace is read after the block, so that reading it costs the block no time."""
        if self._tracer is None:
            return
        if self._cuda:
            torch.cuda.synchronize()
        stopped = _Times.now()
        self._traced_s = stopped.wall_s - self._traced_from_s
        self._sections.annotates = False
        stop_tracer(self._tracer)
        self._stopped, self._tracer = self._tracer, None
        self._own += _Times.now() - stopped

    def _read_tracer(self) -> Operators | None:
        if self._stopped is None:
            return None
        self._trace = chrome.trace_bytes(self._stopped)
        return operators_of(self._stopped, traced_s=self._traced_s, cuda=self._cuda)

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self._wants_operators or self._tracker is not None:
            notes.append("times include the cost of tracing; profile without operators and memory for exact times")
        if self._tracker is not None and self._num_steps < LEAST_STEPS:
            notes.append(
                f"growth needs at least {LEAST_STEPS} steps: call p.step() at the end of each ({self._num_steps} seen)"
            )
        if self._trace is not None and self._trace[1]:
            notes.append(f"{self._trace[1]:,} of the trace's shortest events were left out to keep it small")
        return tuple(notes)


def nsight_commands(program: str, *, marked: bool = False) -> tuple[str, ...]:
    """Return two commands: `nsys` for a time line with NVTX ranges, `ncu` for the counters of single kernels.

    `program` follows `python`. If `marked`, it calls cudaProfilerStart and cudaProfilerStop around the part to look at.
    """
    range_ = "--capture-range=cudaProfilerApi --capture-range-end=stop " if marked else ""
    skip = "--profile-from-start=off" if marked else "--launch-skip=50"
    return (
        f"nsys profile --trace=cuda,nvtx,cublas,cudnn,osrt {range_}--output=whet-nsys python {program}",
        f"ncu --nvtx --set=detailed {skip} --launch-count=20 --export=whet-ncu python {program}",
    )


@dataclass(frozen=True)
class _Times:
    """Hold seconds of three clocks: wall time, CPU time of the process, and CPU time of the calling thread."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    thread_s: float = 0.0

    @staticmethod
    def now() -> "_Times":
        return _Times(time.perf_counter(), time.process_time(), time.thread_time())

    def __add__(self, other: "_Times") -> "_Times":
        return _Times(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s, self.thread_s + other.thread_s)

    def __sub__(self, other: "_Times") -> "_Times":
        return _Times(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s, self.thread_s - other.thread_s)


def _memory_history() -> bytes:
    """Return what PyTorch recorded of its allocator, in the format of pytorch.org/memory_viz."""
    with tempfile.TemporaryDirectory(prefix="whet-memory-") as folder:
        path = Path(folder) / MEMORY_HISTORY
        torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(enabled=None)
        return path.read_bytes()
