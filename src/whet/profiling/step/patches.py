"""Wrap PyTorch's own calls while a loop is watched.

A wrapper passes a call through without timing it if torch.compile traces the call, if another thread makes it, or if it
is part of a phase that already runs.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling as is_compiling  # the quickest of such functions
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from whet.measure.device import device_type_of
from whet.profiling.step.communication import patch_communication
from whet.profiling.step.log import StepLog
from whet.profiling.step.patching import Call, Patches
from whet.profiling.step.phases import Phase, PhaseClock

_WAITING = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__")
_DATA, _OPTIMIZER, _SYNC = (int(p) for p in (Phase.DATA, Phase.OPTIMIZER, Phase.SYNC))
_NOTED_NS = 50_000  # reading a number on the CPU takes less, even with cold caches; finding its line takes as long


def timed(call: Call, clock: PhaseClock, counted_as: Phase) -> Call:
    """Wrap `call` so that its time counts as a phase. Calls inside that phase, as by inner modules, pass at once."""
    phase = int(counted_as)  # quicker to compare than an enum's member

    @functools.wraps(call)
    def timed_call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or clock.top == phase or not clock.enter(phase):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            clock.leave()

    return timed_call


def patch_torch(patches: Patches, log: StepLog, optimizers: frozenset[int] | None) -> None:
    """Patch what both ways of watching need: calls that wait or copy, collectives, backward passes, scalers.

    `optimizers` holds the ids of the optimisers whose steps count; None means all.
    """
    clock = log.clock
    for name in _WAITING:
        call = getattr(Tensor, name)
        patches.set(Tensor, name, _waiting(call, f"Tensor.{name}", clock))
    for name, moves in (("to", _to), ("cuda", _cuda), ("copy_", _copy)):
        patches.set(Tensor, name, _moving(getattr(Tensor, name), f"Tensor.{name}", clock, moves))
    for owner, label in ((torch.cuda, "torch.cuda"), (torch.cuda.Event, "Event"), (torch.cuda.Stream, "Stream")):
        patches.set(owner, "synchronize", _at_line(owner.synchronize, f"{label}.synchronize", clock))
    patches.set(torch.autograd, "backward", timed(torch.autograd.backward, clock, Phase.BACKWARD))
    patches.set(torch.autograd, "grad", timed(torch.autograd.grad, clock, Phase.BACKWARD))
    patch_communication(patches, clock, log.communication, on_cpu=log.device in (None, "cpu"))
    patches.set(nn.Module, "zero_grad", timed(nn.Module.zero_grad, clock, Phase.OPTIMIZER))
    scaler = torch.amp.GradScaler
    for name in ("unscale_", "update"):
        patches.set(scaler, name, timed(getattr(scaler, name), clock, Phase.OPTIMIZER))
    patches.set(scaler, "step", _scaler_step(scaler.step, log, optimizers))


def patch_optimizer(patches: Patches, log: StepLog, optimizer: Optimizer) -> None:
    step, clock, phase, number = optimizer.step, log.clock, _OPTIMIZER, id(optimizer)

    @functools.wraps(optimizer.step)  # schedulers look for an attribute of their own on it
    def stepping(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return step(*args, **kwargs)
        if not clock.enter(phase):
            result = step(*args, **kwargs)
        else:
            try:
                result = step(*args, **kwargs)
            finally:
                clock.leave()
        log.optimizer_stepped(number)
        return result

    patches.set(optimizer, "step", stepping)
    patches.set(optimizer, "zero_grad", timed(optimizer.zero_grad, log.clock, Phase.OPTIMIZER))


def patch_all_loops(patches: Patches, log: StepLog) -> None:
    """Time every DataLoader, outermost module and optimiser's zero_grad. Steps are known from hooks instead."""
    clock = log.clock
    patches.set(_BaseDataLoaderIter, "__next__", _loader_next(_BaseDataLoaderIter.__next__, log))
    patches.set(DataLoader, "__iter__", _loader_iter(DataLoader.__iter__, log))
    patches.set(nn.Module, "__call__", timed(nn.Module.__call__, clock, Phase.FORWARD))
    patches.set(Optimizer, "zero_grad", timed(Optimizer.zero_grad, clock, Phase.OPTIMIZER))


def hook_all_optimizers(patches: Patches, log: StepLog, on_first_step: Callable[[], None]) -> None:
    """Watch every optimiser's steps with PyTorch's own hooks, because each class has a step method of its own.

    `on_first_step` is called when the first step of any optimiser has ended.
    """
    clock = log.clock
    # The steps that run, as pairs of the optimiser's id and whether its phase was entered. A step may call super's.
    running: list[tuple[int, bool]] = []

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_compiling() or not (clock.is_mine() or clock.thread is None):
            return
        if running and clock.top != _OPTIMIZER:
            running.clear()  # a step that raised has left its entry
        running.append((id(optimizer), clock.enter(_OPTIMIZER)))

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_compiling() or not (clock.is_mine() or clock.thread is None):
            return
        if running and running.pop()[1]:
            clock.leave()
        if running and any(ran == id(optimizer) for ran, _ in running):
            return
        if clock.thread is None:
            clock.thread = threading.get_ident()
            log.set_device(device_type_of(*(group["params"] for group in optimizer.param_groups)))
            on_first_step()
        log.optimizer_stepped(id(optimizer))

    patches.add_handle(register_optimizer_step_pre_hook(before))
    patches.add_handle(register_optimizer_step_post_hook(after))


def _waiting(call: Call, what: str, clock: PhaseClock) -> Call:
    """Wrap a tensor's method that waits for its value. A CPU's needs no wait, so only the loop's own calls count."""

    @functools.wraps(call)
    def waiting(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (clock.top and self.is_cpu) or not clock.enter(_SYNC):
            return call(self, *args, **kwargs)
        try:
            return call(self, *args, **kwargs)
        finally:
            clock.leave_at(what, _NOTED_NS if self.is_cpu else 0)

    return waiting


def _at_line(call: Call, what: str, clock: PhaseClock) -> Call:
    """Wrap a function that waits for the GPU. Its time counts by the line that calls it."""

    @functools.wraps(call)
    def synchronizing(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not clock.enter(_SYNC):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            clock.leave_at(what)

    return synchronizing


def _moving(call: Call, what: str, clock: PhaseClock, moves: Callable[[Tensor, Any, Any], Phase | None]) -> Call:
    """Wrap a tensor's method that may copy it to another device. `moves` returns the phase of such a copy, or None."""

    @functools.wraps(call)
    def moving(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not clock.is_on:
            return call(self, *args, **kwargs)
        phase = moves(self, args, kwargs)
        if phase is None or not clock.enter(phase):
            return call(self, *args, **kwargs)
        try:
            return call(self, *args, **kwargs)
        finally:
            clock.leave_at(what)

    return moving


def _to(tensor: Tensor, args: Any, kwargs: Any) -> Phase | None:
    target = kwargs.get("device", kwargs.get("other"))
    if target is None:
        target = args[0] if args else None
    if target is None or isinstance(target, torch.dtype):
        return None
    if isinstance(target, Tensor):
        kind = target.device.type
    elif isinstance(target, int):
        kind = "cuda"
    else:
        kind = str(target).partition(":")[0]
    if tensor.is_cpu:
        return None if kind == "cpu" else Phase.TRANSFER
    return Phase.SYNC if kind == "cpu" and tensor.device.type != "meta" else None


def _cuda(tensor: Tensor, args: Any, kwargs: Any) -> Phase | None:
    return Phase.TRANSFER if tensor.is_cpu else None


def _copy(tensor: Tensor, args: Any, kwargs: Any) -> Phase | None:
    source = args[0] if args else kwargs.get("src")
    if not isinstance(source, Tensor) or source.is_cpu == tensor.is_cpu:
        return None
    return Phase.TRANSFER if source.is_cpu else Phase.SYNC


def _scaler_step(call: Call, log: StepLog, optimizers: frozenset[int] | None) -> Call:
    """Wrap GradScaler.step: a step also ends if the scaler finds infinite gradients and skips the optimiser's step."""
    step = timed(call, log.clock, Phase.OPTIMIZER)

    @functools.wraps(call)
    def stepping(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = log.num_stepped
        result = step(self, optimizer, *args, **kwargs)
        if log.num_stepped == before and (optimizers is None or id(optimizer) in optimizers):
            log.optimizer_stepped(id(optimizer))
        return result

    return stepping


def wait_for(log: StepLog, call: Call, argument: Any) -> Any:
    """Return `call(argument)`, timed as the loop's wait for a batch. StopIteration counts as the end of an epoch."""
    _end_phase_on_error(log.clock)
    if not log.clock.accepts(_DATA):
        return call(argument)
    return _waited(log, call, argument)


def _waited(log: StepLog, call: Call, argument: Any) -> Any:
    """Do the same for a call that is known to come from the loop."""
    log.batch_asked()
    log.clock.enter(_DATA)
    try:
        return call(argument)
    except StopIteration:
        log.loader_ended()
        raise
    finally:
        log.clock.leave()


def _end_phase_on_error(clock: PhaseClock) -> None:
    """End the optimiser's phase if its step has raised, because its hooks are not called then."""
    if clock.top == _OPTIMIZER and clock.is_mine():
        clock.unwind()


def _loader_next(call: Call, log: StepLog) -> Call:
    @functools.wraps(call)
    def next_batch(self: Any) -> Any:
        _end_phase_on_error(log.clock)
        if not log.clock.accepts(_DATA):
            return call(self)
        batch = _waited(log, call, self)
        if not log.loader_facts:
            log.loader_facts = _in_words(self)  # the epoch may have begun before DataLoader was patched
        log.batch_given()
        if log.on_batch is not None:
            log.on_batch(batch)
        return batch

    return next_batch


def _loader_iter(call: Call, log: StepLog) -> Call:
    @functools.wraps(call)
    def start(self: Any) -> Any:
        log.loader_facts = log.loader_facts or describe_loader(self)
        return wait_for(log, call, self)

    return start


def describe_loader(loader: object) -> str:
    """Describe the settings of a DataLoader that decide how long the loop waits for it; "" for anything else."""
    if not isinstance(loader, DataLoader):
        return ""
    return _settings(loader.num_workers, loader.persistent_workers, loader.prefetch_factor)


def _in_words(batches: Any) -> str:
    """Describe the settings of a DataLoader's iterator; "" if it does not have them."""
    num_workers = getattr(batches, "_num_workers", None)
    if num_workers is None:
        return ""
    return _settings(
        num_workers, getattr(batches, "_persistent_workers", False), getattr(batches, "_prefetch_factor", None)
    )


def _settings(num_workers: int, is_persistent: bool, prefetch_factor: int | None) -> str:
    if not num_workers:
        return "num_workers is 0, so the loop itself loads each batch"
    kept = "persistent" if is_persistent else "restarted for each epoch"
    return f"{num_workers} worker{'s' * (num_workers > 1)} ({kept}), prefetch_factor {prefetch_factor}"
