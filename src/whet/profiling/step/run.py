"""Run the training that a user's function stands for, for a number of steps, and watch it.

The function does one of three things. It runs its loop itself, as `train()` of a script does, and is stopped when
enough steps were seen. It returns the parts of a loop, (model, optimizer, loader, loss) or a TrainingWorkload, and whet
runs the loop. Or it returns a function of no arguments that makes one step.
"""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.core.workload.training import OutputLoss, Trainer, TrainingWorkload
from whet.errors import TargetError, WhetError, type_name
from whet.profiling.step.log import NUM_WARM_UP, StepRecord
from whet.profiling.step.report import StepReport
from whet.profiling.step.watch import GlobalWatch, Watch, watch, watch_everything

_RETURNS = "run its training loop, or return (model, optimizer, loader, loss) or a function that makes one step"
_NOTE_EVERY_S = 5.0

Describe = Callable[[BaseException], str]
Note = Callable[[StepReport], None]


class LoopStoppedError(BaseException):
    """End the user's loop from inside. It is a BaseException, so that no `except Exception` in the loop catches it."""


def run_training(
    function: Callable[[], Any], *, num_steps: int, limit_s: float, describe: Describe, note: Note
) -> StepReport:
    """Call `function`, run what it returns if it does not train itself, and report `num_steps` steps after the warm-up.

    It ends earlier if the loop does, at the end of a step after `limit_s` seconds, or if something raises. In the last
    case the report is partial.

    Args:
        describe: Describes the exception that ended the loop.
        note: Called with the report so far every few seconds, from another thread.

    Raises:
        TargetError: Nothing trains.
    """
    stop = _Stop(NUM_WARM_UP + num_steps, limit_s)
    returned = None
    error: BaseException | None = None
    with watch_everything(stop) as everything, _noting(everything, note):
        try:
            returned = function()
        except LoopStoppedError:
            pass
        except WhetError:
            raise
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - whatever a loop raises is its result
            error = raised
    training = None if error or everything.num_steps else _training(returned)
    if training is None:
        return _reported(everything, stop, error, describe)
    steps: Watch | GlobalWatch
    if isinstance(training, TrainingWorkload):
        error, steps = _run_loop(training, stop, note)
    else:
        error, steps = _run_steps(training, stop, note)
    if isinstance(error, WhetError):
        raise error
    return _reported(steps, stop, error, describe)


class _Stop:
    """Raise LoopStoppedError in the loop after enough steps, or when the time is over."""

    def __init__(self, num_steps: int, limit_s: float) -> None:
        self.num_steps = num_steps
        self._limit_s = limit_s
        self._ends = time.monotonic() + limit_s
        self.remark = ""

    def __call__(self, record: StepRecord) -> None:
        if time.monotonic() > self._ends:
            self.remark = f"stopped after {self._limit_s:.0f} s"
        if self.remark or record.number + 1 >= self.num_steps:
            raise LoopStoppedError


def _reported(steps: Watch | GlobalWatch, stop: _Stop, error: BaseException | None, describe: Describe) -> StepReport:
    report = steps.report()
    if stop.remark:
        report = dataclasses.replace(report, remarks=(*report.remarks, stop.remark))
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return report
    return dataclasses.replace(report, is_partial=True, ended_by=describe(error))


def _run_loop(training: TrainingWorkload, stop: _Stop, note: Note) -> tuple[BaseException | None, Watch]:
    """Train, and watch the steps. Return the error that ended the loop, or None, and the watch."""
    trainer = Trainer(training)
    output_loss = training.loss.loss if isinstance(training.loss, OutputLoss) else None
    timed = [training.model, *([output_loss] if isinstance(output_loss, nn.Module) else [])]
    steps = watch(timed, trainer.optimizer, training.batches, on_step=stop)
    device = next((p.device for p in training.model.parameters()), torch.device("cpu"))
    try:
        with steps, _noting(steps, note), contextlib.suppress(LoopStoppedError):
            while _run_epoch(training, trainer, steps, device):
                pass
            raise TargetError(
                "the loader gives no batches; if it is an iterator, pass an iterable that can be iterated repeatedly"
            )
    except Exception as error:  # noqa: BLE001 - whatever a loop raises is its result
        return error, steps
    return None, steps


def _run_epoch(training: TrainingWorkload, trainer: Trainer, steps: Watch, device: torch.device) -> int:
    """Train on every batch once. Return how many batches there were."""
    num_batches = 0
    batches = (_moved(batch, device) for batch in steps)
    while together := list(itertools.islice(batches, training.num_accumulated)):
        trainer.step_on(together)
        num_batches += len(together)
    return num_batches


def _run_steps(step: Callable[[], Any], stop: _Stop, note: Note) -> tuple[BaseException | None, GlobalWatch]:
    with watch_everything(stop) as everything, _noting(everything, note):
        try:
            for _ in range(2 * stop.num_steps):  # the bound ends a function that never steps an optimiser
                step()
        except LoopStoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a loop raises is its result
            return error, everything
    return None, everything


def _training(returned: Any) -> TrainingWorkload | Callable[[], Any] | None:
    """Return the training that was returned by a function that did not train itself; None if it returned nothing."""
    if returned is None or isinstance(returned, TrainingWorkload):
        return returned
    found: tuple[Any, ...] = ()
    if isinstance(returned, Mapping):
        found = tuple(returned.get(name) for name in ("model", "optimizer", "loader", "loss"))
    elif isinstance(returned, tuple | list):
        found = tuple(returned)
    elif all(hasattr(returned, name) for name in ("model", "optimizer", "loader")):
        found = (returned.model, returned.optimizer, returned.loader, getattr(returned, "loss", None))
    elif callable(returned) and not isinstance(returned, nn.Module):
        step: Callable[[], Any] = returned
        return step
    if len(found) not in (3, 4) or not isinstance(found[0], nn.Module) or not isinstance(found[1], Optimizer):
        kinds = ", ".join(type(thing).__name__ for thing in found) or type(returned).__name__
        raise TargetError(f"the function made no optimiser step and returned {kinds}; it must {_RETURNS}")
    if not isinstance(found[2], Iterable):
        raise TargetError(f"the loader is {type_name(found[2])}, which is not iterable; the function must {_RETURNS}")
    if len(found) == 4 and found[3] is not None and not callable(found[3]):
        raise TargetError(f"the loss is {type_name(found[3])}; return a function of the output and the target instead")
    model, optimizer, loader, *loss = found
    return TrainingWorkload(
        model=model, optimizer=lambda _: optimizer, batches=loader, loss=OutputLoss(loss[0] if loss else None)
    )


def _moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with all its tensors on a device, as a loop would move it."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):  # a named tuple becomes a plain one as well: its items are passed to a call
        return tuple(_moved(value, device) for value in batch)
    return batch


@contextmanager
def _noting(steps: Watch | GlobalWatch, note: Note) -> Iterator[None]:
    """Hand over the report so far every few seconds, in case this process is ended early."""
    ended = threading.Event()

    def go() -> None:
        while not ended.wait(_NOTE_EVERY_S):
            note(steps.report())

    thread = threading.Thread(target=go, name="whet-notes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
