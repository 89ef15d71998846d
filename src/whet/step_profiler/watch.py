"""whet.watch: where each step of a training loop goes, by one line in the loop; watch_everything: by none.

for x, y in (steps := whet.watch(model, optimizer, loader)):
    ...  # the loop, as it was
print(steps)
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.errors import TargetError, reason, type_name
from whet.measure.clock import device_type_of
from whet.step_profiler.forward import patch_models
from whet.step_profiler.log import StepLog, StepRecord
from whet.step_profiler.patches import (
    Patches,
    describe_loader,
    hook_all_optimizers,
    patch_all_loops,
    patch_optimizer,
    patch_torch,
    patched,
    wait_for,
)
from whet.step_profiler.report import StepReport, summarize

OnStep = Callable[[StepRecord], None]

_CALL = "whet.watch(model, optimizer, loader)"


class Watch:
    """A loader that times the loop over it. It has the loader's length and attributes, and gives the same batches.

    While it is iterated, or for the whole of a `with` block, the phases of each step are timed; nothing of PyTorch is
    touched before or after. `report()` says what was found, at any time; print() shows it.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        loader: Iterable[Any],
        on_step: OnStep | None = None,
    ) -> None:
        self._models = models
        self._optimizers = optimizers
        self._loader = loader
        self._log = StepLog(on_step, device_type_of(*(model.parameters() for model in models)))
        self._log.loader_facts = describe_loader(loader)
        self._block: ExitStack | None = None
        self._num_running = 0

    def __enter__(self) -> "Watch":
        if self._block is not None:
            raise TargetError("this whet.watch is already in use by a `with` block; make another one")
        self._block = ExitStack()
        self._block.enter_context(self._watching())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        if error is not None:
            self._log.finish(_ended_by(error))
        if block is not None:
            block.close()

    def __iter__(self) -> Iterator[Any]:
        """One epoch."""
        with self._watching():
            log = self._log
            try:
                batches = wait_for(log, iter, self._loader)  # may start workers, so it is part of the wait
                while True:
                    try:
                        batch = wait_for(log, next, batches)
                    except StopIteration:
                        return
                    log.batch_given()
                    yield batch
            finally:
                log.finish()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises TypeError, as the loader itself does

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __str__(self) -> str:
        return str(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def report(self) -> StepReport:
        """What was measured so far."""
        return summarize(self._log)

    def recent(self) -> tuple[StepRecord, ...]:
        """The latest steps, at most 256, oldest first. May be called from any thread."""
        return tuple(self._log.recent)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Patched while at least one epoch or block runs."""
        self._num_running += 1
        self._log.clock.thread = threading.get_ident()
        device = device_type_of(*(model.parameters() for model in self._models))
        if device != self._log.device:  # moved since
            self._log.set_device(device)
        try:
            if self._num_running > 1:
                yield
                return
            with _on(self._log), patched(self._install):
                yield
        finally:
            self._num_running -= 1

    def _install(self, patches: Patches) -> None:
        patch_torch(patches, self._log, frozenset(map(id, self._optimizers)))
        for optimizer in self._optimizers:
            patch_optimizer(patches, self._log, optimizer)
        patch_models(patches, self._log.clock, self._models)


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    loader: Iterable[Any],
    *,
    on_step: OnStep | None = None,
) -> Watch:
    """Time the phases of each training step: iterate over what this returns in place of the loader.

    model: or several, as a model and its loss where that is a module. optimizer: or several, as a GAN has. loader: any
    iterable of batches. on_step: called with each StepRecord as its step ends.

    Phases: data wait, host to device, forward, backward, optimiser, synchronisation (the host waits for a tensor's
    value, for the GPU or for other processes), rest. A step ends where the loop asks for a batch after an optimiser
    step, so gradient accumulation counts as one. On a GPU, phases are timed by events on the stream; nothing waits
    that did not wait before.

    Raises TargetError where the arguments are not what they should be.
    """
    models = _all_of(model, nn.Module, "model", "a torch.nn.Module")
    optimizers = _all_of(optimizer, Optimizer, "optimizer", "a torch.optim.Optimizer")
    if not isinstance(loader, Iterable):
        raise TargetError(f"{_CALL}: loader must be something to iterate over, not {type_name(loader)}")
    return Watch(models, optimizers, loader, on_step)


@contextmanager
def watch_everything(
    on_step: OnStep | None = None, *, on_batch: Callable[[object], None] | None = None, with_memory: bool = True
) -> Iterator["GlobalWatch"]:
    """Watch every training loop of this process, whatever runs it, without being told its model or loader.

    Steps are known from any optimiser's step, data wait from any DataLoader, forward from the outermost module that is
    called. The loop's thread is the one whose optimiser steps first. That first step is not recorded: only when it has
    ended is PyTorch patched, so that code imported before it finds PyTorch as it is.

    on_batch: called with each batch that a DataLoader gives the loop, before the loop has it; it must not keep it.
    with_memory: look for growth. Without, steps have no such looks in between.
    """
    log = StepLog(on_step, on_batch=on_batch, with_memory=with_memory)
    log.clock.thread = None
    with ExitStack() as stack:
        stack.enter_context(_on(log))

        def install(patches: Patches) -> None:
            hook_all_optimizers(patches, log, install_patches)

        def install_patches() -> None:
            stack.enter_context(patched(lambda patches: _patch_all(patches, log)))

        stack.enter_context(patched(install))
        try:
            yield GlobalWatch(log)
        except BaseException as error:
            log.finish(_ended_by(error))
            raise


class GlobalWatch:
    """What `watch_everything` sees: the same records and the same report as `Watch`."""

    def __init__(self, log: StepLog) -> None:
        self._log = log

    @property
    def num_steps(self) -> int:
        return self._log.num_steps

    def report(self) -> StepReport:
        """What was measured so far."""
        return summarize(self._log)

    def recent(self) -> tuple[StepRecord, ...]:
        """The latest steps, at most 256, oldest first. May be called from any thread."""
        return tuple(self._log.recent)


def _patch_all(patches: Patches, log: StepLog) -> None:
    patch_torch(patches, log, None)
    patch_all_loops(patches, log)


@contextmanager
def _on(log: StepLog) -> Iterator[None]:
    """The clock runs; at the end the last step is counted."""
    log.clock.is_on = True
    try:
        yield
    finally:
        try:
            log.finish()
        finally:
            log.clock.is_on = False


def _all_of(given: Any, kind: type, name: str, article: str) -> tuple[Any, ...]:
    things = tuple(given) if isinstance(given, list | tuple) else (given,)
    wrong = [thing for thing in things if not isinstance(thing, kind)]
    if wrong or not things:
        found = f"{type_name(wrong[0])}" if wrong else "an empty list"
        raise TargetError(f"{_CALL}: {name} must be {article}, or a list of such, not {found}")
    return things


def _ended_by(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    said = reason(error)
    name = type(error).__name__
    return name if said == name else f"{name}: {said}"
