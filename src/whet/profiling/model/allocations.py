"""Find which line of user code allocated which tensor memory, what was held when, and by which lines at the peak.

A dispatch mode sees every operator that runs in eager PyTorch, the backward pass included, and watches the storages
that they make until they are freed. It costs some 10 µs per operator, so times are not measured with it.
"""

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from whet.measure.source_location import BEFORE, Line, user_line

_NEW_PEAK = 1.01  # a peak's lines are noted if it is so many times the last noted peak
_MOST_POINTS = 2000

# Operators that make tensors from Python or numpy data: the storage is new, although it looks like an input.
_LIFTS = frozenset({"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"})


@dataclass(frozen=True)
class Allocation:
    """Describe one storage that is alive.

    Attributes:
        dtype: As "float32". It and `shape` are those of the tensor that was first seen with the storage.
        device: The device type, as "cpu".
        line: The line of user code that allocated it or, if `is_outside`, that first used it.
        step: The step in which it was first seen, counted from 0.
        is_outside: Whether no watched operator made it. It then comes from a data loader's worker, from numpy, or from
            before the profile began.
        key: The storage's identity while it lives.
    """

    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    line: Line
    step: int
    is_outside: bool
    key: int


@dataclass(frozen=True)
class LineUse:
    """Describe what one line of user code held at a moment."""

    line: Line
    num_bytes: int
    num_tensors: int


@dataclass(frozen=True)
class TensorMemory:
    """Describe the tensor memory that was seen allocated and freed in a run.

    Attributes:
        peak_lines: The lines that held the peak, largest first.
        points: Pairs of seconds since the start, and bytes held.
        step_bytes: Bytes held at the end of each step.
    """

    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_lines: tuple[LineUse, ...] = ()
    points: tuple[tuple[float, int], ...] = ()
    step_bytes: tuple[int, ...] = ()
    step_peak_bytes: tuple[int, ...] = ()


@dataclass
class _LineTotal:
    num_bytes: int = 0
    num_tensors: int = 0


@dataclass
class _Totals:
    """Hold running totals. `noted` holds bytes and tensors by line, at the peak of `noted_bytes`."""

    held_bytes: int = 0
    peak_bytes: int = 0
    noted_bytes: int = -1
    step_peak_bytes: int = 0
    uses: dict[Line, _LineTotal] = field(default_factory=dict)
    noted: dict[Line, tuple[int, int]] = field(default_factory=dict)


class AllocationTracker(TorchDispatchMode):
    """Watch storages while it is entered. Call `step()` after each step. `changed` gets the bytes held as they grow."""

    def __init__(self, *, changed: Callable[[int], None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: dict[int, tuple[Allocation, Any]] = {}  # with the weak reference, which must live as long
        self._track = _Totals()
        self.changed = changed
        self._step = 0
        self._step_bytes: list[int] = []
        self._step_peaks: list[int] = []
        self._points: list[tuple[float, int]] = []
        self._every_s = 0.0
        self._began_s = time.perf_counter()
        self._start_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._track.held_bytes

    @property
    def num_steps(self) -> int:
        return self._step

    def register(self, tensors: Iterable[Tensor]) -> None:
        """Add storages that exist before anything runs. They count as held, but belong to no line."""
        for tensor in tensors:
            self._add_storage(tensor, BEFORE, is_outside=True)
        self._start_bytes = self._track.held_bytes

    def step(self) -> None:
        self._step += 1
        self._step_bytes.append(self._track.held_bytes)
        self._step_peaks.append(self._track.step_peak_bytes)
        self._track.step_peak_bytes = self._track.held_bytes

    def alive(self) -> list[Allocation]:
        """Return every storage that is alive now, largest first."""
        return sorted((allocation for allocation, _ in list(self._held.values())), key=lambda a: -a.num_bytes)

    def memory(self) -> TensorMemory:
        track = self._track
        lines = [LineUse(line, held, count) for line, (held, count) in track.noted.items() if held]
        return TensorMemory(
            start_bytes=self._start_bytes,
            end_bytes=track.held_bytes,
            peak_bytes=track.peak_bytes,
            peak_lines=tuple(sorted(lines, key=lambda use: -use.num_bytes)),
            points=(*self._points, (time.perf_counter() - self._began_s, track.held_bytes)),
            step_bytes=tuple(self._step_bytes),
            step_peak_bytes=tuple(self._step_peaks),
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((args, tuple(kwargs.values()))))
        line = None
        lifts = getattr(func, "_schema", None) is not None and func._schema.name in _LIFTS
        for tensor in given:  # look at them before the call, because it may free or resize them
            if storage_key(tensor) not in self._held:
                line = line or user_line(sys._getframe(1))
                self._add_storage(tensor, line, is_outside=not lifts)
        output = func(*args, **kwargs)
        for tensor in _tensors((output,)):
            key = storage_key(tensor)
            if key not in self._held:
                line = line or user_line(sys._getframe(1))
                self._add_storage(tensor, line, is_outside=False)
        return output

    def _add_storage(self, tensor: Tensor, line: Line, *, is_outside: bool) -> None:
        try:
            storage = tensor.untyped_storage()
            num_bytes = storage.nbytes()
            device = storage.device.type
        except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have no storage of their own
            return
        key = int(storage._cdata)
        if key in self._held or not num_bytes or device == "meta":
            return
        dtype = str(tensor.dtype).removeprefix("torch.")
        found = Allocation(num_bytes, tuple(tensor.shape), dtype, device, line, self._step, is_outside, key)
        reference = weakref.ref(storage, lambda _, key=key: self._remove_storage(key))  # type: ignore[misc]
        self._held[key] = (found, reference)
        track = self._track
        use = track.uses.setdefault(line, _LineTotal())
        use.num_bytes += num_bytes
        use.num_tensors += 1
        track.held_bytes += num_bytes
        self._note_peak()
        if self.changed is not None:
            self.changed(track.held_bytes)

    def _remove_storage(self, key: int) -> None:
        if (found := self._held.pop(key, None)) is None:
            return
        held, _ = found
        use = self._track.uses[held.line]
        use.num_bytes -= held.num_bytes
        use.num_tensors -= 1
        self._track.held_bytes -= held.num_bytes

    def _note_peak(self) -> None:
        """Note a new peak and a point of the timeline."""
        track = self._track
        held = track.held_bytes
        track.step_peak_bytes = max(track.step_peak_bytes, held)
        if held > track.peak_bytes:
            track.peak_bytes = held
            if held > _NEW_PEAK * track.noted_bytes:
                track.noted_bytes = held
                track.noted = {line: (use.num_bytes, use.num_tensors) for line, use in track.uses.items()}
        at_s = time.perf_counter() - self._began_s
        if not self._points or at_s - self._points[-1][0] >= self._every_s:
            self._points.append((at_s, held))
            if len(self._points) >= _MOST_POINTS:
                self._points = self._points[::2]
                self._every_s = max(2 * self._every_s, 1e-4)


def storage_key(tensor: Tensor) -> int | None:
    """Return a key that two live tensors share exactly if they share memory; None for a tensor without storage."""
    with contextlib.suppress(NotImplementedError, RuntimeError):
        return int(tensor.untyped_storage()._cdata)
    return None


def _tensors(values: tuple[Any, ...] | list[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
