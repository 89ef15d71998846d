"""Profile a workload for `whet profile`, in several passes. Each measures one thing, so that none disturbs another.

If the model raises in a later pass, the results of the earlier passes are kept, and the report says that it is partial.
"""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.signature import read_signature, split, tensors_of
from whet.core.workload import ExaminedWorkload, Workload
from whet.errors import ModelError, WhetError, is_out_of_memory, named_reason, reason
from whet.measure.clock import Measurement, measure_calls, synchronize
from whet.measure.device import use_device_of
from whet.measure.machine import Limits
from whet.measure.quiet import undisturbed
from whet.profiling.model import chrome
from whet.profiling.model.allocations import AllocationTracker, storage_key
from whet.profiling.model.diagnosis import attainable_s, layer_bound
from whet.profiling.model.layers import Profile, call_of, profile_layers
from whet.profiling.model.live_memory import inspect_memory
from whet.profiling.model.operators import operators_of, start_tracer, stop_tracer
from whet.profiling.model.referrers import LiveObjects, names_of
from whet.profiling.model.report import Latency, LayerLine, Report
from whet.profiling.model.sections import SectionCost, Sections
from whet.profiling.model.session import nsight_commands
from whet.profiling.model.spans import watched
from whet.profiling.model.timeline import Timeline, cuda_fragmentation
from whet.profiling.model.verdict import Hint, growth_sentence, model_verdict
from whet.ui.figures import percent

_TIMING_S = 1.5
_PASS_S = 1.0  # a pass over sections, operators or memory starts no more calls after so long
_TRACED_CALLS = 3
_SECTION_CALLS = 10
_MEMORY_CALLS = 12  # enough to tell growth from a queue
_FAR_OFF = 0.1  # relative difference between the sum of the layers' times and the whole call's time

Advise = Callable[[Workload, Profile, Limits], Sequence[Hint]]


@dataclass
class _Run:
    """Hold the state of one profile while it is made. `report` holds what is known so far."""

    workload: Workload
    depth: int | None
    target: str
    limits: Callable[[], Limits]
    advise: Advise | None
    done: Callable[[Report], None]
    report: Report
    device: str
    trace: bytes | None = None
    calls: list[Callable[[], Any]] = field(default_factory=list)

    @property
    def model(self) -> nn.Module:
        return self.workload.model


@dataclass(frozen=True)
class WorkloadProfile:
    """Hold a profile's report, and the content of trace.json.gz: None if the model raised before it was traced."""

    report: Report
    trace: bytes | None


def profile_workload(
    workload: Workload,
    *,
    limits: Callable[[], Limits],
    advise: Advise | None = None,
    depth: int | None = None,
    target: str = "",
    done: Callable[[Report], None] = lambda report: None,
) -> WorkloadProfile:
    """Measure time, layers, sections, operators and memory of a model, in evaluation mode, without gradients.

    Args:
        limits: Returns the machine's limits. It is called after the bare model has been timed.
        advise: Returns the techniques that apply, with their bounds.
        depth: The depth of the tree of modules.
        target: The name that the user gave, for suggested commands.
        done: Called with the report after each pass.

    Raises:
        ModelError: The model raises on its very first call. If it raises later, the report is partial.
    """
    device = device_of(workload)
    empty = any(not tensor.numel() for tensor in tensors_of(workload.inputs[0]))
    notes = ("the batch has no samples, so the times are only the overhead of calling the model",) if empty else ()
    run = _Run(workload, depth, target, limits, advise, done, Report(workload.name, device, notes=notes), device)
    run.calls = [call_of(workload.model, batch) for batch in workload.inputs]
    passes: tuple[tuple[str, Callable[[_Run], None]], ...] = (
        ("timed", _time),
        ("profiled layer by layer", _profile_layers),
        ("watched module by module", _watch_modules),
        ("traced", _trace),
        ("watched for memory", _watch_memory),
    )
    with torch.no_grad():
        _first_call(run)
        for name, do in passes:
            try:
                do(run)
            except WhetError:
                raise
            except Exception as error:  # noqa: BLE001 - the model may raise anything on a later call
                said = named_reason(error)
                _keep(run, partial=f"while it was being {name}, the model raised {said}")
            if run.report.partial:
                break
            done(run.report)
    return WorkloadProfile(run.report, run.trace)


def device_of(workload: Workload) -> str:
    """Return the device type of the first parameter, buffer or input. A GPU becomes the current one."""
    args, kwargs = split(workload.inputs[0])
    for tensor in (*workload.model.parameters(), *workload.model.buffers(), *args, *kwargs.values()):
        if isinstance(tensor, Tensor):
            use_device_of(tensor)
            return tensor.device.type
    return "cpu"


def run_for_nsight(workload: Workload, *, num_calls: int = 5) -> None:
    """Run the warm model between cudaProfilerStart and cudaProfilerStop, with one NVTX range for each module."""
    sections = Sections(nvtx=True)
    call = call_of(workload.model, workload.inputs[0])
    with torch.no_grad(), _watching(workload, call, sections) as watched_call:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        for i in range(num_calls):
            with sections.section(f"call {i}"):
                watched_call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def _keep(run: _Run, **found: Any) -> None:
    run.report = replace(run.report, **found)


def _first_call(run: _Run) -> None:
    try:
        run.calls[0]()
    except Exception as error:  # the user's model may raise anything
        if is_out_of_memory(error):
            raise
        raise ModelError(f"the model raised {type(error).__name__} on its first call: {reason(error)}") from error


def _time(run: _Run) -> None:
    """Time bare calls: latency, busy cores, and the memory of the process."""
    samples: list[float] = []

    def timed(call: Callable[[], Any]) -> Callable[[], None]:
        def once() -> None:
            start_ns = time.perf_counter_ns()
            call()
            samples.append((time.perf_counter_ns() - start_ns) / 1e9)

        return once

    timeline = Timeline(run.device)
    timeline.start()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    stopped = ""
    measured = None
    try:
        measured = measure_calls(
            [timed(call) for call in run.calls],
            budget_s=_TIMING_S,
            num_samples_per_call=run.workload.samples_per_batch,
            keeps_partial=True,
        )
        stopped = measured.stopped_by or ""
        _keep(run, busy=measured.cause)
    except Exception as error:  # noqa: BLE001 - the model may raise anything while it is warmed up
        stopped = named_reason(error)
        if samples:
            measured = Measurement(tuple(samples), run.workload.samples_per_batch)
    cores = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
    fragmentation = cuda_fragmentation() if run.device == "cuda" else None
    _keep(run, memory=timeline.stop(), latency=_latency(measured, cores), fragmentation=fragmentation)
    if stopped:
        _keep(run, partial=f"while it was being timed, after {len(samples)} good calls, the model raised {stopped}")


def _latency(measured: Measurement | None, cores: float) -> Latency | None:
    if measured is None or not measured.samples_s:
        return None
    return Latency(
        measured.latency_ms, measured.p90_ms, measured.p99_ms, len(measured.samples_s), measured.throughput, cores
    )


def _profile_layers(run: _Run) -> None:
    """Profile the model layer by layer against the machine's limits, and find the verdict."""
    output = run.calls[0]()
    signature = read_signature(run.workload.inputs, output)
    examined = ExaminedWorkload(run.workload, signature, (), None)
    profile, busy = undisturbed(lambda: profile_layers(examined))
    limits = run.limits()
    notes = list(run.report.notes)
    hints: Sequence[Hint] = ()
    if run.advise is not None:
        try:
            hints = run.advise(run.workload, profile, limits)
        except WhetError as error:
            notes.append(f"whet could not find out which techniques apply: {error}")
    layers = tuple(_layer_line(profile, limits, i) for i in range(len(profile.layers)))
    sum_s = sum(layer.time_s for layer in profile.layers)
    if profile.total_s and abs(sum_s / profile.total_s - 1) > _FAR_OFF:
        notes.append(
            f"the layers' times add up to {percent(sum_s / profile.total_s)} of the whole call: the calls are so "
            "short, or the machine is so busy, that watching the layers changes the times"
        )
    is_disturbed = bool(run.report.busy or busy)
    _keep(
        run,
        busy=run.report.busy or busy,
        layers=layers,
        call_s=profile.total_s,
        dtype=profile.dtype,
        notes=(*notes, *limits.notes),
        verdict=model_verdict(profile, limits, hints=hints, target=run.target, is_disturbed=is_disturbed),
        commands=nsight_commands(f"-m whet profile {shlex.quote(run.target)} --nvtx", marked=True)
        if run.device == "cuda"
        else (),
    )


def _layer_line(profile: Profile, limits: Limits, i: int) -> LayerLine:
    layer = profile.layers[i]
    num_bytes = layer.weight_bytes + layer.activation_bytes
    least_s = attainable_s(layer, limits, dtype=profile.dtype)
    return LayerLine(
        name=layer.name,
        kind=layer.kind,
        calls=layer.calls,
        time_s=layer.time_s,
        flops=layer.flops,
        num_bytes=num_bytes,
        intensity=layer.flops / num_bytes if num_bytes else None,
        bound=layer_bound(layer, limits, dtype=profile.dtype),
        share_of_limit=min(1.0, least_s / layer.time_s) if layer.time_s and least_s else None,
    )


def _watch_modules(run: _Run) -> None:
    """Time the modules as sections, down to the requested depth. The outermost section is one call of the model."""
    sections = Sections(depth=run.depth, cuda=run.device == "cuda")
    with _watching(run.workload, run.calls[0], sections) as call:
        for _ in _repeated(_SECTION_CALLS):
            call()
    _keep(run, sections=sections.costs())


def _trace(run: _Run) -> None:
    cuda = run.device == "cuda"
    tracer = start_tracer(cuda=cuda, warm_up=run.calls[0])
    started_s = time.perf_counter()
    try:
        for _ in _repeated(_TRACED_CALLS):
            with torch.profiler.record_function("whet: one call"):
                run.calls[0]()
        synchronize()
    finally:
        traced_s = time.perf_counter() - started_s
        stop_tracer(tracer)
    run.trace, lost = chrome.trace_bytes(tracer)
    if lost:
        _keep(run, notes=(*run.report.notes, f"{lost:,} of the trace's shortest events were left out"))
    _keep(run, operators=operators_of(tracer, traced_s=traced_s, cuda=cuda))


def _watch_memory(run: _Run) -> None:
    """Watch every tensor: which lines allocated the largest, what the peak held, and what each call leaves behind."""
    tracker = AllocationTracker()
    sections = Sections(depth=run.depth, read_bytes=lambda: tracker.held_bytes, read_again_ns=0)
    tracker.changed = sections.note_bytes
    inputs = [tensor for batch in run.workload.inputs for tensor in tensors_of(batch)]
    tracker.register((*run.model.parameters(), *run.model.buffers(), *inputs))
    named = names_of(LiveObjects(modules=[run.model]))  # named by this model, not by one that was exported from it
    named |= {key: "inputs" for tensor in inputs if (key := storage_key(tensor)) is not None}
    with _watching(run.workload, run.calls[0], sections) as call, tracker:
        for _ in _repeated(_MEMORY_CALLS, least=6):
            call()
            tracker.step()
    live, leaks = inspect_memory(tracker, named)
    _keep(
        run,
        tensors=tracker.memory(),
        largest=live,
        leaks=leaks,
        num_steps=tracker.num_steps,
        sections=_with_memory(run.report.sections, sections.costs()),
    )
    verdict = run.report.verdict
    if leaks and verdict is not None:
        _keep(run, verdict=replace(verdict, sentences=(*verdict.sentences, growth_sentence(leaks, "call"))))


def _with_memory(timed: Sequence[SectionCost], watched: Sequence[SectionCost]) -> tuple[SectionCost, ...]:
    """Join the times of one pass with the tensor memory of another, by path. Growth becomes the mean of one call."""
    known = {section.path: section for section in watched}
    return tuple(
        replace(s, grown_bytes=round(m.grown_bytes / m.calls), peak_bytes=m.peak_bytes)
        if (m := known.get(s.path)) is not None
        else s
        for s in timed
    )


def _repeated(most: int, *, least: int = 1) -> Iterator[int]:
    """Yield `most` numbers. Once `_PASS_S` has passed, stop early, but not before `least` numbers."""
    began = time.perf_counter()
    for i in range(most):
        if i >= least and time.perf_counter() - began > _PASS_S:
            return
        yield i


class _ModuleSections:
    """Enter and leave a section named for each module that runs."""

    def __init__(self, names: Sequence[str], sections: Sections) -> None:
        self._names = names
        self._sections = sections

    def enter(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._sections.enter(self._names[index])

    def leave(self, index: int, output: Any) -> None:
        self._sections.leave()


@contextlib.contextmanager
def _watching(workload: Workload, call: Callable[[], Any], sections: Sections) -> Iterator[Callable[[], Any]]:
    """Yield the call with every module of the model as a section inside the section of its caller."""
    named = [
        (name, module)
        for name, module in workload.model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule) or not name
    ]
    names = [_short(name) or type(workload.model).__name__ for name, _ in named]
    with watched(call, [module for _, module in named], _ModuleSections(names, sections)) as watched_call:
        yield watched_call


def _short(name: str) -> str:
    """Return a module's short name. A module in a list is named with the list, as "blocks.0"."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() and len(parts) > 1 else parts[-1]
