"""What is to be made fast: a model, the inputs it is called with, and what good results are.

A Workload comes from the user's own function, from a Hugging Face directory, or from the built-in ones. It holds
the original; every optimised variant is judged against it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from whet.behaviour import Behaviour, behaviour_of, version_of, writes_into
from whet.errors import InputsError, ModelError, TargetError, WhetError, reason, type_name
from whet.measure.clock import use_device_of
from whet.scripted import stateless
from whet.signature import (
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

Predict = Callable[..., Any]
"""The model as its users call it: the original, or any variant of it."""


class Mode(StrEnum):
    INFERENCE = "inference"
    TRAINING = "training"
    GENERATION = "generation"


@dataclass(frozen=True)
class Quality:
    """How good a model's answers are.

    measure: takes a callable with the model's own calling convention. It returns the score as one number, or one score
    per sample, whose mean is the score: a tensor [N] or a list, such as 1.0 for each right answer and 0.0 for each
    wrong one. From scores per sample, whet can say how large a drop the samples are able to show.
    """

    name: str
    measure: Callable[[Predict], float | Tensor | Sequence[float]]
    higher_is_better: bool = True

    def drop(self, original: float, changed: float) -> float:
        """How much worse `changed` is, as a fraction of `original`: 0.01 is one percent worse, negative is better."""
        worse = original - changed if self.higher_is_better else changed - original
        return worse / abs(original) if original else worse


@dataclass(frozen=True)
class Score:
    """A quality as measured. samples: the score of each sample, whose mean is `value`; empty if they are not known."""

    value: float
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to be made fast.

    model: in eval mode. inputs: batches, each a tensor, a tuple of arguments or a dict of arguments by name. An
    argument is a tensor, a constant (int, float, bool, str, None), or a tuple, list, dict or dataclass of arguments.
    Constants are the same in every batch. Time is measured on the batches in turn. quality: a held-out score; without
    one, a variant is judged by how closely its outputs agree with the original's on the calibration batches.
    calibration: batches that quantisers may look at; the inputs, if not given.
    """

    model: nn.Module
    inputs: Sequence[Batch]
    quality: Quality | None = None
    calibration: Sequence[Batch] = ()
    name: str = "model"
    mode: Mode = Mode.INFERENCE
    num_samples: int = field(default=0)  # per batch; the first input's first dimension, if not given

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TargetError(f"model must be a torch.nn.Module, not {type(self.model).__name__}")
        for name, batches in (("inputs", self.inputs), ("calibration", self.calibration)):
            if not isinstance(batches, list | tuple):
                raise TargetError(f"{name} must be a list of batches, not {type_name(batches)}")
        if not self.inputs:
            raise TargetError("inputs must hold at least one batch")
        if self.mode is not Mode.INFERENCE:
            raise TargetError(f"whet tune handles inference workloads; this one is {self.mode}")
        if not self.calibration:
            object.__setattr__(self, "calibration", tuple(self.inputs))
        if self.num_samples <= 0:
            object.__setattr__(self, "num_samples", samples_of(self.inputs[0]))

    @property
    def samples_per_batch(self) -> float:
        """On average, as latency is an average over batches: those of a last, smaller one count for less."""
        sizes = [samples_of(batch) for batch in self.inputs]
        is_counted = self.num_samples == sizes[0]  # else the user has said what a sample is
        return sum(sizes) / len(sizes) if is_counted else self.num_samples


@dataclass(frozen=True)
class Subject:
    """A workload whose model has been run and found sound: its signature, outputs and score are known.

    outputs: the original's, for each calibration batch, in order. score: the original's quality, if there is one.
    sample_scores: of each sample, where the quality gives them.
    effects: what forward does that a graph would leave out, in words. shared: places of the outputs that share memory
    with an input, a weight or another output. depends_on_grad_mode: whether outputs differ while gradients are on.
    """

    workload: Workload
    signature: Signature
    outputs: tuple[tuple[Tensor, ...], ...]
    score: float | None
    sample_scores: tuple[float, ...] = ()
    effects: tuple[str, ...] = ()
    shared: tuple[int, ...] = ()
    depends_on_grad_mode: bool = False

    def flat(self, batch: Batch) -> tuple[Tensor, ...]:
        """The tensors of a batch, in the signature's order."""
        args, kwargs = split(batch)
        return self.signature.flatten(args, kwargs)

    @property
    def flat_inputs(self) -> list[tuple[Tensor, ...]]:
        return [self.flat(batch) for batch in self.workload.inputs]

    @property
    def flat_calibration(self) -> list[tuple[Tensor, ...]]:
        return [self.flat(batch) for batch in self.workload.calibration]


def examine(
    workload: Workload, *, with_quality: bool = True, with_behaviour: bool = True, with_effects: bool = True
) -> Subject:
    """Run the original: find its signature, and check that it works and can be compared with.

    with_behaviour: also find how it behaves beyond its outputs; not needed where the original is only measured.
    with_effects: as part of that, find what a graph would leave out; not needed where that was done before.

    Raises InputsError where the inputs don't fit, ModelError where the model raises, returns NaN or infinities,
    answers the same question differently twice, writes into its inputs or remembers them, TargetError where the quality
    function fails.
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
    return Subject(workload, signature, outputs, value, score.samples, **vars(behaviour))


def measure_quality(quality: Quality, predict: Predict) -> float:
    """Return the score of a model or a variant as one number. Raises as measure_score does."""
    return measure_score(quality, predict).value


def measure_score(quality: Quality, predict: Predict) -> Score:
    """Score a model or a variant.

    Raises:
        TargetError: The user's function fails, or returns neither a number nor one score per sample.
        ModelError: The score is NaN or infinite.
    """
    with torch.no_grad():
        try:
            value: Any = quality.measure(predict)
        except (WhetError, MemoryError):
            raise
        except Exception as error:  # the user's function may raise anything, and so may the model it calls
            raise TargetError(f"quality {quality.name!r} raised {type(error).__name__}: {reason(error)}") from error
    try:
        scores = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        if (scores.dim() > 1 and scores.numel() > 1) or not scores.numel():
            raise ValueError(f"its shape is {list(scores.shape)}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(
            f"quality {quality.name!r} must return a number, or one number per sample; it returned {type_name(value)}"
        ) from error
    score = float(scores.mean())
    if not math.isfinite(score):
        raise ModelError(f"quality {quality.name!r} is {score}; it must be a finite number")
    return Score(score, tuple(scores.tolist()) if scores.numel() > 1 else ())


def _run(model: nn.Module, batch: Batch) -> Any:
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
    if read_output(output) != signature.output:
        raise TargetError("the model returns different structures or constants for different inputs; whet needs one")
    tensors = output_tensors(output)
    if not tensors:
        raise TargetError("the model returns no tensor")
    if any(tensor.numel() and not torch.isfinite(tensor).any() for tensor in tensors):
        raise ModelError(
            "the model returns nothing but NaN or infinity on its own inputs; nothing can be compared with that"
        )


def _check_same(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    if not _agree(first, second):
        raise ModelError(
            "the model is not deterministic: the same inputs gave different outputs twice; "
            "call .eval() and remove random sampling"
        )


def _agree(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(is_near(a, b, least=1e-5) for a, b in zip(first, second, strict=True))


def is_near(a: Tensor, b: Tensor, *, tolerance: float = 1e-3, least: float = 0.0) -> bool:
    """Equal, or as near as another order of sums brings them: tolerance times the value, or times a usual one;
    or within `least`.

    Libraries may choose another path in a thread. docs-gpt on a 2-core Xeon with AMX gave logits in one of 20 processes
    that differ by 1e-3 at most and by 3e-5 in all, relative to their norm. NaN and infinities are near themselves.
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


def finite_entries(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the finite entries of two tensors of one shape, such as outputs with masked places.

    None where an infinity or NaN of one tensor is not that of the other too.
    """
    is_finite = a.isfinite()
    if is_finite.all() and b.isfinite().all():
        return a, b
    odd_a, odd_b = a[~is_finite], b[~is_finite]
    if not b[is_finite].isfinite().all() or not torch.equal(odd_a.isnan(), odd_b.isnan()):
        return None
    if not torch.equal(odd_a[~odd_a.isnan()].double(), odd_b[~odd_b.isnan()].double()):
        return None
    return a[is_finite], b[is_finite]


def _recording(model: nn.Module, seen: list[Batch]) -> Predict:
    """The model, noting what it is called with: shapes and types only, which is what the meta device keeps."""

    def predict(*args: Any, **kwargs: Any) -> Any:
        if args and kwargs:
            raise InputsError("the quality function must call the model as `inputs` do: all by position or all by name")
        seen.append(map_tensors(kwargs or args, lambda tensor: tensor.to("meta")))
        return model(*args, **kwargs)

    return predict


def samples_of(batch: Batch) -> int:
    """The first dimension of its first tensor; 1 where there is none."""
    first = next(iter(tensors_of(batch)), None)
    return max(1, int(first.shape[0])) if first is not None and first.dim() else 1
