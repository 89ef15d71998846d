"""Decide whether a saved variant takes any batch size or only that of the inputs.

A variant is first built with a free batch. It counts as free only once the artefact, loaded from disk, has answered
other batch sizes as the model does. Otherwise it is built again, fixed to the batch size of the inputs, and a note says
why.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from whet.core.artefact import Artefact, load
from whet.core.artefact.inductor import CompileRuntime
from whet.core.artefact.shape_guards import Guards
from whet.core.recipe import Step
from whet.core.signature import output_tensors, read_output
from whet.core.workload import ExaminedWorkload, samples_of
from whet.errors import MissingExtra, TargetError, reason
from whet.tuner.build import build
from whet.tuner.known_target import BatchDimension
from whet.tuner.output_error import real, relative_error, rms

_TOLERANCE = 1e-3  # times a usual value: another batch size may add in another order, which changes results this much
_REFUSES_ONE = "a batch of 1 is refused: the model takes another path there"
_BROKEN = 0.5  # times a usual value: a larger error at the tuned size is no rounding, and hides errors at other sizes
_MARGIN = 5.0  # an error of more than this many times the error at the tuned size is no rounding

_error = partial(relative_error, same_finite=True)


@dataclass(frozen=True)
class Made:
    """Hold a variant as loaded back from disk.

    Attributes:
        notes: What its techniques report, and why its batch is fixed.
        fixed_batch: The only batch size that it takes; None for any.
        reference: What it must answer like: the workload, or one with the smaller model that a technique made of it.
    """

    artefact: Artefact
    notes: tuple[str, ...]
    fixed_batch: int | None
    reference: ExaminedWorkload


def with_free_batch(examined: ExaminedWorkload) -> tuple[ExaminedWorkload, BatchDimension]:
    """Return the workload with its batch dimension free, if the model itself takes other batch sizes."""
    size = samples_of(examined.workload.inputs[0])
    shapes = [argument.shape for argument in examined.signature.inputs]
    if not shapes[0] or shapes[0][0] is None:  # there is no batch, or it is free already
        return examined, BatchDimension(size=size)
    freed = tuple(i for i, shape in enumerate(shapes) if shape and shape[0] == size)
    free = _with_batch(examined, freed, None)
    for other in _other_sizes(size):
        if why := _refusal(free, other):
            return examined, BatchDimension(size=size, reason=f"the model does not take a batch of {other}: {why}")
    return free, BatchDimension(size=size, freed=freed)


def make(examined: ExaminedWorkload, steps: Sequence[Step], directory: Path, batch: BatchDimension) -> Made:
    """Build a recipe, save it into `directory` and load it back, with a free batch if it answers other sizes correctly.

    Raises:
        TargetError: The recipe cannot be built, or its result answers another batch size wrongly although the inputs
            vary in size.
    """
    if not batch.freed:
        made = _make(examined, steps, directory, batch.size if batch.reason else None, batch.reason)
        if not batch.reason and (wrong := _disagreement(made.reference, made.artefact, batch.size).wrong):
            raise TargetError(wrong)
        return made
    try:
        made = _make(examined, steps, directory, None, "")
        answers = made.artefact.run(*examined.flat_calibration[0])  # raises where a condition on sizes is broken
        if _is_broken(answers, made.reference.outputs[0]):
            found = _Disagreement("built with a free batch, the variant answers its own inputs wrongly")
        else:
            found = _disagreement(made.reference, made.artefact, batch.size)
        if not found.wrong and found.refused in ((), (1,)):
            return replace(made, notes=(*made.notes, _REFUSES_ONE)) if found.refused else made
        why = found.wrong or found.reason
    except (MissingExtra, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - compilers and converters raise whatever they stumble over
        why = reason(error)
    shutil.rmtree(directory, ignore_errors=True)
    return _make(_with_batch(examined, batch.freed, batch.size), steps, directory, batch.size, why)


def _make(
    examined: ExaminedWorkload, steps: Sequence[Step], directory: Path, fixed_batch: int | None, why: str
) -> Made:
    candidate = build(examined, steps)
    if fixed_batch is not None:
        candidate = replace(candidate, notes=(*candidate.notes, f"fixed to batch {fixed_batch}: {why}"))
    return Made(load(candidate.save(directory)), candidate.notes, fixed_batch, candidate.examined)


@dataclass(frozen=True)
class _Disagreement:
    """Describe what an artefact does with other batch sizes.

    Attributes:
        wrong: Which size it answers differently from the model, in words; "" where there is none.
        refused: The sizes for which it raises an error.
        reason: The first of these errors.
    """

    wrong: str = ""
    refused: tuple[int, ...] = ()
    reason: str = ""


def _disagreement(examined: ExaminedWorkload, artefact: Artefact, size: int) -> _Disagreement:
    """Compare an artefact with the model on other batch sizes.

    An error counts as rounding as long as it is not much larger than the error at the known size.
    """
    if not _batched(examined):
        return _Disagreement()
    tensors, wanted = examined.flat_calibration[0], examined.outputs[0]
    rows = tensors[_batched(examined)[0]].shape[0]
    known = [y.clone() for y in artefact.run(*tensors)]
    refused, why = [], ""
    for other in _other_sizes(size):
        inputs = _resized(examined, other)
        try:
            expected = _outputs(examined, inputs)
        except Exception:  # noqa: BLE001 - the artefact need not answer sizes that the model itself refuses
            continue
        try:
            found = _answer(artefact, inputs, other)
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises for sizes that it does not take
            refused.append(other)
            why = why or reason(error)
            continue
        for ours, theirs, before, original in zip(found, expected, known, wanted, strict=True):
            usual, allowed = _usual(original), _error(before, original, _usual(original))
            if other < rows and before.dim() and before.shape[0] == rows:
                allowed = max(allowed, _error(before[:other], original[:other], usual))
            if not _error(ours, theirs, usual) <= _MARGIN * allowed + _TOLERANCE:
                return _Disagreement(f"the variant answers a batch of {other} differently from the model")
    return _Disagreement("", tuple(refused), why)


def _is_broken(answers: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Return whether the error on inputs that were seen is larger than rounding explains."""
    return any(_error(y, original, _usual(original)) > _BROKEN for y, original in zip(answers, wanted, strict=True))


def _answer(artefact: Artefact, inputs: Sequence[Tensor], size: int) -> tuple[Tensor, ...]:
    """Run an artefact. For a batch of 1, torch.compile's code runs uncompiled, which saves minutes of compiling."""
    if size == 1 and isinstance(artefact.runtime, CompileRuntime):
        Guards(artefact.manifest.conditions).check(inputs)
        return artefact.runtime.run_uncompiled(inputs)
    return artefact.run(*inputs)


def _other_sizes(size: int) -> tuple[int, ...]:
    return (1, size + 1) if size > 1 else (2, 3)


def _refusal(examined: ExaminedWorkload, size: int) -> str:
    """Return why the model does not take a batch of `size`, or "" where it does."""
    signature = examined.signature
    try:
        args, kwargs = signature.call(_resized(examined, size))
        with torch.no_grad():
            output = examined.workload.model(*args, **kwargs)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything
        return reason(error)
    return "" if read_output(output) == signature.output else "it returns other constants then"


def _outputs(examined: ExaminedWorkload, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    args, kwargs = examined.signature.call(tensors)
    with torch.no_grad():
        return output_tensors(examined.workload.model(*args, **kwargs))


def _batched(examined: ExaminedWorkload) -> list[int]:
    """Return the positions of the inputs whose first dimension is free."""
    return [i for i, argument in enumerate(examined.signature.inputs) if argument.shape and argument.shape[0] is None]


def _resized(examined: ExaminedWorkload, size: int) -> tuple[Tensor, ...]:
    """Return the first calibration batch with `size` rows: cut, or repeated from the start."""
    batched = _batched(examined)
    tensors = examined.flat_calibration[0]
    rows = tensors[batched[0]].shape[0]
    return tuple(
        x.index_select(0, torch.arange(size, device=x.device) % rows) if i in batched and x.shape[0] == rows else x
        for i, x in enumerate(tensors)
    )


def _with_batch(examined: ExaminedWorkload, positions: Sequence[int], size: int | None) -> ExaminedWorkload:
    """Return the workload with the first dimension of some inputs set to `size`; None sets it free."""
    inputs = tuple(
        replace(argument, shape=(size, *argument.shape[1:])) if i in positions else argument
        for i, argument in enumerate(examined.signature.inputs)
    )
    return replace(examined, signature=replace(examined.signature, inputs=inputs))


def _usual(wanted: Tensor) -> float:
    """Return the root mean square of a result's finite values, or 1.0 where it is zero."""
    values = real(wanted).double()
    return rms(values[values.isfinite()]) or 1.0
