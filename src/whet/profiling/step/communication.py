"""See communication while a loop is watched: where a step waits for other processes, and what runs beside its work.

A step waits in a blocking call of torch.distributed, in `wait` of one that runs on, where the result of a functional
collective (those of DTensor) is first used, and at the end of a backward pass under DistributedDataParallel. This time
is the phase COMMUNICATION: it is exposed. What runs while the step does something else is overlapped. It is known on
CPUs alone; a GPU's collectives run on streams of their own, which a trace shows (`whet profile --trace`).

Collectives within code that torch.compile has made are not seen.
"""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling
from torch.nn.parallel import DistributedDataParallel

from whet.profiling.step.patching import Call, Patches
from whet.profiling.step.phases import Phase, PhaseClock

_COLLECTIVES = (
    *("barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object"),
    *("broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all"),
    *("all_to_all_single", "gather", "gather_object", "scatter", "scatter_object_list"),
    *("all_gather_single", "reduce_scatter_single"),  # FSDP2 uses them, from torch 2.13 on
    *("send", "recv", "send_object_list", "recv_object_list"),  # isend and irecv wait in Work.wait; P2POp compares them
    "_broadcast_coalesced",  # DistributedDataParallel calls it for buffers
)
_FUNCTIONAL_MODULE = "torch.distributed._functional_collectives"
# DTensor and tensor parallelism call these. They reach the dispatcher without the functions above.
_FUNCTIONAL = (
    *("all_reduce", "all_gather_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all_single", "broadcast", "wait_tensor"),
    *("all_gather_tensor_autograd", "all_gather_single_autograd", "reduce_scatter_tensor_autograd"),
    *("reduce_scatter_single_autograd", "all_to_all_single_autograd"),
)
_COMMUNICATION, _BACKWARD = int(Phase.COMMUNICATION), int(Phase.BACKWARD)
_MOST_RUNNING = 4096  # collectives whose end is awaited; more were begun and dropped
_DDP_EVERY = 8  # backward passes; reading what DistributedDataParallel has noted takes 0.1 ms
_DDP_RATE = 100  # PyTorch's own, in iterations between two that it notes


class InFlight:
    """Sum up the time in which any collective runs while the loop does not wait for one.

    A collective ends when its future does, which another thread tells. That of a functional one, which has none, ends
    when the loop has waited for it: where it has ended before, the sum is too large.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.overlapped_ns = 0
        self._now = now
        self._running: set[int] = set()
        self._since: int | None = None  # None while nothing runs, or the loop waits
        self._lock = threading.Lock()

    def begin(self, key: int) -> None:
        """Note that the collective `key` runs from now on, outside of any wait."""
        with self._lock:
            if len(self._running) >= _MOST_RUNNING:
                self._running.clear()
            self._running.add(key)
            if self._since is None:
                self._since = self._now()

    def end(self, key: int) -> None:
        """Note that it has ended; of others, this takes no notice."""
        with self._lock:
            self._running.discard(key)
            if not self._running:
                self._add()

    def pause(self) -> None:
        """Note that the loop waits from now on."""
        with self._lock:
            self._add()

    def resume(self) -> None:
        """Note that the loop does not wait any more."""
        with self._lock:
            if self._running:
                self._since = self._now()

    def _add(self) -> None:
        if self._since is not None:
            self.overlapped_ns += self._now() - self._since
            self._since = None


class Communication:
    """Hold what is known of communication beyond its phase.

    Attributes:
        in_flight: What runs beside the loop; None where that cannot be known.
    """

    def __init__(self) -> None:
        self.in_flight: InFlight | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the sums, as at the end of the warm-up."""
        if self.in_flight is not None:
            self.in_flight.overlapped_ns = 0
        self._ddp_ns = self._num_ddp = self._num_forward = 0
        self._awaits_gradients = False

    def overlapped_ms(self, num_steps: int) -> float | None:
        """Return the milliseconds a step in which it ran beside other work; None where that is not known."""
        if self.in_flight is None:
            return None
        return (self.in_flight.overlapped_ns / num_steps + self._ddp_ns / max(1, self._num_ddp)) / 1e6

    def ddp_called(self, model: DistributedDataParallel) -> None:
        """Note a forward pass whose backward pass sums gradients over processes."""
        self._awaits_gradients = True
        if self.in_flight is None or model.device_type != "cpu":
            return
        if self._num_forward % _DDP_EVERY == _DDP_EVERY - 1:
            noted = model._get_ddp_logging_data()  # of the iteration before
            self._ddp_ns += noted.get("backward_compute_comm_overlap_time", 0)
            self._num_ddp += 1
        self._num_forward += 1

    def take_awaits_gradients(self) -> bool:
        """Return whether the next backward pass sums gradients over processes, and forget it."""
        awaits, self._awaits_gradients = self._awaits_gradients, False
        return awaits


def patch_communication(patches: Patches, clock: PhaseClock, communication: Communication, *, on_cpu: bool) -> None:
    """Patch what waits for other processes. The backward pass must have been patched as a phase before."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    is_initialized = distributed.is_initialized()
    if on_cpu and is_initialized and communication.in_flight is None:
        communication.in_flight = InFlight()
    in_flight = communication.in_flight
    for name in filter(partial(hasattr, distributed), _COLLECTIVES):
        _patch(patches, distributed, name, clock, in_flight)
    if is_initialized or _FUNCTIONAL_MODULE in sys.modules:
        functional = import_module(_FUNCTIONAL_MODULE)
        for name in filter(partial(hasattr, functional), _FUNCTIONAL):
            _patch(patches, functional, name, clock, in_flight)
    if not is_initialized:
        return
    patches.set(distributed.Work, "wait", _waiting(distributed.Work.wait, clock, in_flight))
    forward = _ddp_forward(DistributedDataParallel.forward, patches, communication)
    patches.set(DistributedDataParallel, "forward", forward)
    backward = _backward(torch.autograd.backward, clock, communication)
    patches.set(torch.autograd, "backward", backward)


def _patch(patches: Patches, module: Any, name: str, clock: PhaseClock, in_flight: InFlight | None) -> None:
    patches.set(module, name, _communicating(getattr(module, name), f"distributed.{name}", clock, in_flight))


def _communicating(call: Call, what: str, clock: PhaseClock, in_flight: InFlight | None) -> Call:
    """Wrap a function that waits for other processes, or begins what runs on. Its line in the loop is remembered."""

    @functools.wraps(call)
    def communicating(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not clock.enter(_COMMUNICATION):
            return call(*args, **kwargs)
        if in_flight is None:
            try:
                return call(*args, **kwargs)
            finally:
                clock.leave_at(what)
        in_flight.pause()
        try:
            result = call(*args, **kwargs)
        finally:
            clock.leave_at(what)
            in_flight.resume()
        if what == "distributed.wait_tensor":
            in_flight.end(_key(args[0]))
        else:
            _begin(result, in_flight)
        return result

    return communicating


def _begin(result: Any, in_flight: InFlight) -> None:
    """Note that a collective runs on, if its result says so."""
    if type(result) is torch.distributed.Work:  # the subclass within a coalesced call has no future
        key = id(result)
        in_flight.begin(key)
        with contextlib.suppress(RuntimeError):  # a backend without futures
            result.get_future().add_done_callback(lambda _: in_flight.end(key))
    elif getattr(result, "completed", True) is False:  # an AsyncCollectiveTensor
        in_flight.begin(_key(result.elem))


def _key(tensor: Tensor) -> int:
    """Return what a tensor has in common with its views."""
    return tensor.untyped_storage().data_ptr()


def _waiting(call: Call, clock: PhaseClock, in_flight: InFlight | None) -> Call:
    """Wrap Work.wait."""

    @functools.wraps(call)
    def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not clock.enter(_COMMUNICATION):
            return call(self, *args, **kwargs)
        if in_flight is not None:
            in_flight.pause()
        try:
            return call(self, *args, **kwargs)
        finally:
            clock.leave_at("distributed.Work.wait")
            if in_flight is not None:
                in_flight.end(id(self))
                in_flight.resume()

    return waiting


class _RateOfNotes:
    """Let DistributedDataParallel note the times of every backward pass until `remove`."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        model._set_ddp_runtime_logging_sample_rate(1)

    def remove(self) -> None:
        self._model._set_ddp_runtime_logging_sample_rate(_DDP_RATE)


def _ddp_forward(call: Call, patches: Patches, communication: Communication) -> Call:
    """Wrap DistributedDataParallel.forward."""
    known: set[int] = set()

    @functools.wraps(call)
    def forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return call(self, *args, **kwargs)
        if id(self) not in known:
            known.add(id(self))
            if communication.in_flight is not None:
                patches.add_handle(_RateOfNotes(self))
        result = call(self, *args, **kwargs)
        if self.require_backward_grad_sync and torch.is_grad_enabled():
            communication.ddp_called(self)
        return result

    return forward


def _backward(call: Call, clock: PhaseClock, communication: Communication) -> Call:
    """Wrap torch.autograd.backward, which waits for gradients at its end.

    DistributedDataParallel waits in a callback of autograd's engine. One that is queued before it tells when all
    gradients have been computed. On a GPU, callbacks run in another thread, and the wait counts as backward.
    """

    @functools.wraps(call)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not communication.take_awaits_gradients() or not clock.enter(_BACKWARD):
            return call(tensors, *args, **kwargs)
        first = tensors if isinstance(tensors, Tensor) else next(iter(tensors))

        def computed() -> None:
            if clock.top == _BACKWARD:
                clock.enter(_COMMUNICATION)

        def began(_: Tensor) -> None:
            torch.autograd.Variable._execution_engine.queue_callback(computed)

        hook = first.register_hook(began)
        try:
            return call(tensors, *args, **kwargs)
        finally:
            hook.remove()
            if clock.top == _COMMUNICATION:
                clock.leave_at("DistributedDataParallel")
            clock.leave()

    return backward
