"""Watch a model's modules run: which one is innermost, and for how long.

A module's `forward` is replaced on the instance instead of hooked. With a hook attached, nn.TransformerEncoderLayer and
others take another path through their code, so that the measured code would not be the code that usually runs.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

_OUTSIDE = -1  # the index that stands for "no module runs"


class Watcher(Protocol):
    """Define what `watched` calls when a module starts and when it ends."""

    def enter(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Handle the start of a call of module number `index` with these arguments."""

    def leave(self, index: int, output: Any) -> None:
        """Handle the end of a call of module number `index`. The output is None if the call raised."""


@contextmanager
def watched(run: Callable[..., Any], modules: Sequence[nn.Module], watcher: Watcher) -> Iterator[Callable[..., Any]]:
    """Tell `watcher` of every call of `modules`, by their index, while the context lasts.

    Results do not change. The modules are restored at the end, even if a call raises. `run` calls the model, which is
    the first of the modules; call what this yields instead of it.
    """
    restore: list[tuple[nn.Module, Any]] = []
    try:
        for index, module in enumerate(modules):
            if index:  # `run` is wrapped instead of the model, because a compiled model's forward cannot be replaced
                restore.append((module, vars(module).get("forward")))
                object.__setattr__(module, "forward", _wrap(module.forward, index, watcher))
        yield _wrap(run, 0, watcher)
    finally:
        for module, own in restore:
            if own is None:
                object.__delattr__(module, "forward")
            else:
                object.__setattr__(module, "forward", own)


def _wrap(forward: Callable[..., Any], index: int, watcher: Watcher) -> Callable[..., Any]:
    enter, leave = watcher.enter, watcher.leave

    @functools.wraps(forward)  # some models look at the signature of a module's forward
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        enter(index, args, kwargs)
        output = None
        try:
            output = forward(*args, **kwargs)
        finally:
            leave(index, output)
        return output

    return wrapped


class Spans:
    """Measure how much time each module spends itself, its children left out, and how often it is called.

    On CUDA, an event on the stream marks each change of module. A span is then the time that the GPU needed for it,
    including the time that the GPU waited for the host.

    Attributes:
        calls: The number of calls of each module, by its index.
        parents: The module that was running when a module was first called, by index; -1 for none.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._stack = [_OUTSIDE]
        self._marks: list[tuple[int, Any]] = []
        self.calls: dict[int, int] = {}
        self.parents: dict[int, int] = {}

    def enter(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls[index] = self.calls.get(index, 0) + 1
        if index not in self.parents:
            self.parents[index] = self._stack[-1]
        self._stack.append(index)
        self._marks.append((index, self._now()))

    def leave(self, index: int, output: Any) -> None:
        self._stack.pop()
        self._marks.append((self._stack[-1], self._now()))

    def exclusive_s(self) -> dict[int, float]:
        """Return the seconds of each module. A span from one mark to the next belongs to the innermost module."""
        seconds: dict[int, float] = {}
        for (index, start), (_, stop) in zip(self._marks, self._marks[1:], strict=False):
            if index != _OUTSIDE:
                seconds[index] = seconds.get(index, 0.0) + self._between_s(start, stop)
        return seconds

    def _now(self) -> Any:
        if self._device != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between_s(self, start: Any, stop: Any) -> float:
        if self._device != "cuda":
            return (stop - start) / 1e9  # type: ignore[no-any-return]
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3  # type: ignore[no-any-return]


@functools.cache
def watching_cost_s(device: str) -> tuple[float, float]:
    """Measure the seconds that each watched call adds to the module's own time, and to its caller's time."""
    module = _Nothing()

    def caller() -> None:
        for _ in range(_NUM_CALLS):
            module()

    alone, own, around = [], [], []
    for _ in range(9):
        start = time.perf_counter_ns()
        caller()
        alone.append((time.perf_counter_ns() - start) / 1e9 / _NUM_CALLS)
        spans = Spans(device)
        with watched(caller, [module, module], spans) as run:
            run()
        seconds = spans.exclusive_s()
        own.append(seconds[1] / _NUM_CALLS)
        around.append(seconds[0] / _NUM_CALLS)
    return statistics.median(own), max(0.0, statistics.median(around) - statistics.median(alone))


_NUM_CALLS = 100


class _Nothing(nn.Module):
    def forward(self) -> None:
        return None
