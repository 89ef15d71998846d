"""Measure where each step of a training loop goes, with one changed line in the loop.

for x, y in (steps := whet.watch(model, optimizer, loader)):
    ...  # the loop, as it was
print(steps)

`watch_everything` needs no change in the loop.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.errors import TargetError, reason, type_name
from whet.measure.device import device_type_of
from whet.profiling.step.forward import patch_models
from whet.profiling.step.log import StepLog, StepRecord
from whet.profiling.step.patches import (
    describe_loader,
    hook_all_optimizers,
    patch_all_loops,
    patch_optimizer,
    patch_torch,
    wait_for,
)
from whet.profiling.step.patching import Patches, patched
from whet.profiling.step.report import StepReport, summarize

OnStep = Callable[[StepRecord], None]

_CALL = "whet.watch(model, optimizer, loader)"


class Watch:
    """Wrap a loader and time the loop over it.

    A watch has the loader's length and attributes, and gives the same batches. The phases of each step are timed while
    the watch is iterated or, if it is used in a `with` statement, until the block ends. PyTorch is not patched before
    or after. `report()` returns what was found, at any time; print() shows it.
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
        with self._watching():
            log = self._log
            try:
                batches = wait_for(log, iter, self._loader)  # this may start workers, so it is part of the wait
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

    def _repr_html_(self) -> str | None:
        return self.report()._repr_html_()

    def report(self) -> StepReport:
        return summarize(self._log)

    def recent(self) -> tuple[StepRecord, ...]:
        """Return the latest steps, at most 256, oldest first. This may be called from any thread."""
        return tuple(self._log.recent)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Patch PyTorch while at least one epoch or block runs."""
        self._num_running += 1
        self._log.clock.thread = threading.get_ident()
        device = device_type_of(*(model.parameters() for model in self._models))
        if device != self._log.device:  # the model was moved
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
    """Time the phases of each training step: iterate over the result instead of the loader.

    The phases are data wait, host to device, forward, backward, optimiser, synchronisation (the host waits for a
    tensor's value, for the GPU or for other processes) and rest. A step ends when the loop asks for a batch after an
    optimiser's step, so gradient accumulation counts as one step. On a GPU, phases are timed by events on the stream,
    so that nothing waits that did not wait before.

    Args:
        model: The model, or several, as a model and a loss that is a module.
        optimizer: The optimiser, or several, as for a GAN.
        loader: Any iterable of batches.
        on_step: Called with each StepRecord as its step ends.

    Raises:
        TargetError: An argument has the wrong type.
    """
    models = _all_of(model, nn.Module, "model", "a torch.nn.Module")
    optimizers = _all_of(optimizer, Optimizer, "optimizer", "a torch.optim.Optimizer")
    if not isinstance(loader, Iterable):
        raise TargetError(f"{_CALL}: loader must be iterable, not {type_name(loader)}")
    return Watch(models, optimizers, loader, on_step)


@contextmanager
def watch_everything(
    on_step: OnStep | None = None, *, on_batch: Callable[[object], None] | None = None, with_memory: bool = True
) -> Iterator["GlobalWatch"]:
    """Watch every training loop of this process, without being told its model or loader.

    Steps are known from any optimiser's step, data wait from any DataLoader, and forward from the outermost module that
    is called. The loop's thread is the one whose optimiser steps first. PyTorch is patched only when this first step
    has ended, so that code that is imported before sees PyTorch unpatched. The first step is not recorded.

    Args:
        on_step: Called with each StepRecord as its step ends.
        on_batch: Called with each batch that a DataLoader gives the loop, before the loop gets it. It must not keep it.
        with_memory: Whether to read memory between steps, to find growth.
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
    """Give access to the steps that `watch_everything` sees, with the same report as `Watch`."""

    def __init__(self, log: StepLog) -> None:
        self._log = log

    @property
    def num_steps(self) -> int:
        """Return how many steps have ended, including the warm-up."""
        return self._log.num_steps

    def report(self) -> StepReport:
        return summarize(self._log)


def _patch_all(patches: Patches, log: StepLog) -> None:
    patch_torch(patches, log, None)
    patch_all_loops(patches, log)


@contextmanager
def _on(log: StepLog) -> Iterator[None]:
    """Run the clock. At the end, count the last step."""
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
