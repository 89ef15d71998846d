"""Examine a model: check that it runs and is deterministic, and find its signature, outputs and score."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.scripted import stateless
from whet.core.side_effects import Behaviour, behaviour_of, version_of, writes_into
from whet.core.signature import (
    Batch,
    FlatModel,
    Signature,
    argument_of,
    map_tensors,
    output_tensors,
    read_output,
    read_signature,
    split,
    tensors_of,
)
from whet.core.workload.inference import InferenceWorkload
from whet.core.workload.quality import Predict, Score, measure_score
from whet.errors import InputsError, ModelError, TargetError, reason
from whet.measure.device import device_type_of, use_device_of


@dataclass(frozen=True)
class ExaminedWorkload:
    """Hold a workload whose model was run and found sound, with its signature, outputs and score.

    Attributes:
        signature: The model's input and output tensors, under its own calling convention.
        outputs: The original's outputs for each calibration batch, in order.
        score: The original's quality; None without one.
        sample_scores: The score of each sample, where the quality gives them.
        effects: What forward does that a graph would leave out, in words.
        shared: Positions of the outputs that share memory with an input, a weight or another output.
        depends_on_grad_mode: Whether the outputs differ while gradients are on.
        kept_in: A directory where techniques keep what takes long to make again; None for none.
    """

    workload: InferenceWorkload
    signature: Signature
    outputs: tuple[tuple[Tensor, ...], ...]
    score: float | None
    sample_scores: tuple[float, ...] = ()
    effects: tuple[str, ...] = ()
    shared: tuple[int, ...] = ()
    depends_on_grad_mode: bool = False
    kept_in: Path | None = None

    def flat(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the tensors of a batch, in the signature's order."""
        args, kwargs = split(batch)
        return self.signature.flatten(args, kwargs)

    @property
    def device_type(self) -> str:
        """Return the kind of device that the inputs are on: "cpu" or "cuda"."""
        return device_type_of(self.flat_inputs[0])

    @property
    def flat_inputs(self) -> list[tuple[Tensor, ...]]:
        return [self.flat(batch) for batch in self.workload.inputs]

    @property
    def flat_calibration(self) -> list[tuple[Tensor, ...]]:
        return [self.flat(batch) for batch in self.workload.calibration]


def examine(
    workload: InferenceWorkload, *, with_quality: bool = True, with_behaviour: bool = True, with_effects: bool = True
) -> ExaminedWorkload:
    """Run the original: find its signature, and check that it works and can be compared with.

    Args:
        with_behaviour: Whether to find how it behaves beyond its outputs. That is not needed where it is only measured.
        with_effects: Whether that includes what a graph would leave out. It is not needed where known from before.

    Raises:
        InputsError: The inputs don't fit the model.
        ModelError: The model raises an error, returns only NaN or infinity, gives different outputs for the same
            inputs, or writes into its inputs or remembers them.
        TargetError: The quality function fails, or the model's outputs are no tensors or differ in structure.
    """
    model = workload.model.eval()
    for tensor in itertools.islice(tensors_of(workload.inputs[0]), 1):
        use_device_of(tensor)
    seen: list[Batch] = []
    with torch.no_grad():
        with stateless(model):
            raw = [_run(model, batch) for batch in workload.calibration]
        signature = read_signature([*workload.inputs, *workload.calibration], raw[0])
        for output in itertools.chain(raw, (_run(model, batch) for batch in workload.inputs)):
            _check_output(output, signature)
        _check_same(output_tensors(raw[0]), output_tensors(_run(model, workload.calibration[0])))
        score, behaviour = Score(math.nan), Behaviour()
        if with_behaviour:
            args, kwargs = split(workload.calibration[0])
            flat = FlatModel(model, signature).eval()
            inputs = signature.flatten(args, kwargs)
            behaviour = behaviour_of(model, flat, inputs, _agree, with_effects=with_effects)
        if with_quality and workload.quality is not None:
            score = measure_score(workload.quality, _recording(model, seen))
            signature = read_signature([*workload.inputs, *workload.calibration], raw[0], seen=seen)
    value = None if math.isnan(score.value) else score.value
    outputs = tuple(map(output_tensors, raw))
    return ExaminedWorkload(workload, signature, outputs, value, score.samples, **vars(behaviour))


def _run(model: nn.Module, batch: Batch) -> Any:
    """Call the model with a batch, and check that it does not write into the batch."""
    args, kwargs = split(batch)
    versions = list(map(version_of, tensors_of(batch)))
    try:
        output = model(*args, **kwargs)
    except MemoryError:
        raise
    except Exception as error:  # the user's model may raise anything
        shapes = ", ".join(str(argument_of(None, tensor)) for tensor in tensors_of(batch))
        kind = InputsError if isinstance(error, TypeError) or _is_shape_error(str(error)) else ModelError
        raise kind(f"the model raised {type(error).__name__} on inputs ({shapes}): {reason(error)}") from error
    for i, (tensor, before) in enumerate(zip(tensors_of(batch), versions, strict=True)):
        if version_of(tensor) != before:
            raise writes_into(i)
    return output


def _is_shape_error(message: str) -> bool:
    words = ("shape", "size", "dtype", "Expected", "channels", "dimension", "out of range")
    return any(word in message for word in words)


def _check_output(output: Any, signature: Signature) -> None:
    """Check that an output has the signature's structure and some finite values."""
    if read_output(output) != signature.output:
        raise TargetError(
            "the model returns different structures or constants for different inputs; whet needs the same for all"
        )
    tensors = output_tensors(output)
    if not tensors:
        raise TargetError("the model returns no tensor")
    if any(tensor.numel() and not torch.isfinite(tensor).any() for tensor in tensors):
        raise ModelError(
            "the model returns only NaN or infinity on its own inputs, so variants cannot be compared with it"
        )


def _check_same(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    if not _agree(first, second):
        raise ModelError(
            "the model is not deterministic: the same inputs gave different outputs twice; "
            "call .eval() and remove random sampling"
        )


def _agree(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return whether two calls gave the same outputs, rounding aside."""
    return len(first) == len(second) and all(is_near(a, b, least=1e-5) for a, b in zip(first, second, strict=True))


def is_near(a: Tensor, b: Tensor, *, tolerance: float = 1e-3, least: float = 0.0) -> bool:
    """Return whether two tensors differ by no more than floating-point reordering explains.

    Libraries may choose other kernels in another thread: docs-gpt on a 2-core Xeon with AMX gave other logits in one of
    20 processes, by 1e-3 at most and 3e-5 overall, relative to their norm. NaN and infinity are near themselves.

    Args:
        tolerance: Allowed, as a fraction of the value and of the root mean square of `b`'s finite values.
        least: A difference that is allowed in any case.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if not a.is_floating_point():
        return torch.equal(a, b)
    finite = b[b.isfinite()].double()
    usual = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=max(least, tolerance * usual), equal_nan=True)


def _recording(model: nn.Module, seen: list[Batch]) -> Predict:
    """Return a function that calls the model and records the shapes and dtypes of its arguments, as meta tensors."""

    def predict(*args: Any, **kwargs: Any) -> Any:
        if args and kwargs:
            raise InputsError("the quality function must call the model as `inputs` do: all by position or all by name")
        seen.append(map_tensors(kwargs or args, lambda tensor: tensor.to("meta")))
        return model(*args, **kwargs)

    return predict
