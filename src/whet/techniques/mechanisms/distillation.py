"""Train a model on what a larger one, its teacher, says: its outputs, and its hidden states.

The losses are those of distilled_losses.py. A hidden state of the student is held against one of the teacher through a
learnt linear map where their widths differ (Jiao et al., 2020, arXiv:1909.10351).

Shape suffixes: N targets, S width of the student, T width of the teacher.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whet.core.workload import TrainingWorkload
from whet.core.workload.blocks import blocks_of
from whet.core.workload.micro_batches import counted
from whet.core.workload.training import Loss
from whet.errors import TargetError
from whet.techniques.mechanisms.deferred_logits import DeferredLogits
from whet.techniques.mechanisms.distilled_losses import (
    Rule,
    check_numbers,
    check_shapes,
    distillation_loss,
    hidden_loss,
    mean_loss,
)

__all__ = [
    "MAPS",
    "Distillation",
    "HiddenStates",
    "distillation_loss",
    "distilled",
    "even_layers",
    "hidden_loss",
]

MAPS = "distilled_maps"
"""Name the student's submodule with the learnt maps to the teacher's widths. It is no part of the finished model."""


def even_layers(num_student: int, num_teacher: int) -> dict[int, int]:
    """Return the teacher's layer for each of the student's, counted from 0: evenly spaced, the last for the last."""
    return {i: max(0, round((i + 1) * num_teacher / num_student) - 1) for i in range(num_student)}


@dataclass(frozen=True)
class HiddenStates:
    """Say which hidden states are held against each other.

    Attributes:
        layers: The teacher's layer for some of the student's, counted from 0.
        weight: The weight of their term in the loss.
    """

    layers: Mapping[int, int]
    weight: float

    def add_maps(self, student: nn.Module, widths: tuple[int, int], seed: int) -> None:
        """Give a student the linear maps to the teacher's width, as its submodule `MAPS`. Equal widths need none.

        Args:
            student: Its maps are trained and saved with it.
            widths: The widths of the student and of the teacher.
            seed: Decides the first weights of the maps.
        """
        if widths[0] == widths[1]:
            return
        generator = torch.Generator().manual_seed(seed)
        maps = nn.ModuleDict()
        for layer in self.layers:
            with torch.device("meta"):
                made = nn.Linear(*widths, bias=False)
            drawn_TS = torch.randn(widths[1], widths[0], generator=generator) / math.sqrt(widths[0])
            made.weight = nn.Parameter(drawn_TS.to(next(student.parameters()).device))
            maps[str(layer)] = made
        student.add_module(MAPS, maps)

    def loss(self, student: nn.Module, ours: Sequence[Any], theirs: Sequence[Any], keep_N: Tensor) -> Tensor:
        """Return the weighted term of the loss.

        Args:
            ours: What the student's layers returned, those that are held against a layer of the teacher.
            theirs: What these layers of the teacher returned.
            keep_N: Which targets count.

        Raises:
            TargetError: The states do not belong to the targets, one to one.
        """
        if len(ours) != len(self.layers) or len(theirs) != len(self.layers):
            raise TargetError(
                f"{len(ours)} of {len(self.layers)} layers of the student were seen in forward, and {len(theirs)} of "
                "the teacher; a compiled model hides them, so leave compile out of the recipe, or hidden states out"
            )
        maps = getattr(student, MAPS, None)
        mapped = []
        for layer, state in zip(self.layers, ours, strict=True):
            if state.shape[:-1].numel() != len(keep_N):
                raise TargetError(
                    f"the states of layer {layer} have {state.shape[:-1].numel()} places, and the loss "
                    f"{len(keep_N)} targets; hidden states need one target for each token"
                )
            weight_TS = None if maps is None else maps[str(layer)].weight
            mapped.append(state if weight_TS is None else F.linear(state.to(weight_TS.dtype), weight_TS))
        return self.weight * hidden_loss(mapped, theirs, keep_N)


@dataclass(frozen=True, eq=False)
class Distillation:
    """Compute the loss of a training with a teacher, as loss(model, batch). `distilled` describes the attributes.

    The cross-entropy that the training's own loss takes is replaced by the distillation's, whatever comes before it:
    shifts, masks, several documents in a row. So both models need logits of the same shape.
    """

    loss: Loss
    teacher: nn.Module
    temperature: float = 1.0
    alpha: float = 0.5
    teacher_loss: Loss | None = None
    hidden: HiddenStates | None = None

    def __post_init__(self) -> None:
        check_numbers(self.temperature, self.alpha)
        self.teacher.eval().requires_grad_(False)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of one batch.

        Raises:
            TargetError: The loss takes no cross-entropy of classes, or the models have logits of different shapes.
        """
        layers = {} if self.hidden is None else self.hidden.layers
        taught = _Taught()
        with torch.no_grad(), _outputs_of(self.teacher, list(layers.values())) as theirs, taught:
            (self.teacher_loss or self.loss)(self.teacher, batch)
        with _outputs_of(model, list(layers)) as ours:
            learning = _Learning(self, model, taught.logits, ours, theirs)
            with learning:
                loss = self.loss(model, batch)
        if not taught.logits or learning.number != len(taught.logits):
            raise TargetError(
                "the loss takes no cross-entropy of torch.nn.functional, or the teacher's another number of them, so "
                "that there are no outputs to distil; give a loss that takes one"
            )
        return loss

    def term(
        self, model: nn.Module, teacher: Tensor, values: Mapping[str, Any], ours: Sequence[Any], theirs: Sequence[Any]
    ) -> Tensor:
        """Return what takes the place of one cross-entropy, from its arguments by name and the teacher's logits."""
        student, target = _real(values["input"]), values["target"]
        if target.is_floating_point() or values["reduction"] not in ("mean", "sum"):
            raise TargetError("a distillation takes the mean or the sum of a cross-entropy of classes")
        check_shapes(student, teacher)
        keep = target != values["ignore_index"]
        count = int(keep.sum())
        is_plain = values["weight"] is None and not values["label_smoothing"]
        rule = Rule(1 - self.alpha if is_plain else 0.0, self.alpha, self.temperature)

        def compute() -> Tensor:
            loss = mean_loss(student, teacher, target, rule, keep)
            if not is_plain and count:
                own = F.cross_entropy(**{**values, "input": student, "reduction": "mean"})
                loss = loss + (1 - self.alpha) * own
            if self.hidden is not None:
                loss = loss + self.hidden.loss(model, ours, theirs, keep.flatten())
            return loss * count if values["reduction"] == "sum" else loss

        return counted(compute, count, is_sum=values["reduction"] == "sum")


def distilled(
    workload: TrainingWorkload,
    teacher: nn.Module,
    temperature: float = 1.0,
    alpha: float = 0.5,
    *,
    teacher_loss: Loss | None = None,
    hidden: HiddenStates | None = None,
) -> TrainingWorkload:
    """Return a training run whose model also learns from a teacher. The held-out score stays the training's own.

    Args:
        workload: The training. Its loss takes torch.nn.functional.cross_entropy of logits and classes, in the loss
            itself or in the model.
        teacher: A model with logits of the same shape for the same batches. It is put into evaluation mode, and its
            parameters get no gradients.
        temperature: What both logits are divided by for the teacher's term, above 0.
        alpha: The weight of the teacher's term, from 0 to 1.
        teacher_loss: The loss for the teacher, where it is called otherwise; None for the workload's own.
        hidden: Which hidden states are held against each other; None for none.

    Raises:
        OptionError: temperature or alpha is out of its range.
    """
    loss = Distillation(workload.loss, teacher, temperature, alpha, teacher_loss, hidden)
    return replace(workload, loss=loss)


class _Taught(TorchFunctionMode):
    """Keep the logits of the teacher's cross-entropies, which are not computed."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.cross_entropy:
            return function(*args, **(kwargs or {}))
        logits = _real(_values(args, kwargs)["input"])
        self.logits.append(logits)
        return logits.new_zeros(())


class _Learning(TorchFunctionMode):
    """Put the distillation's loss in the place of the student's cross-entropies."""

    def __init__(
        self, rule: Distillation, model: nn.Module, logits: Sequence[Tensor], ours: list[Any], theirs: list[Any]
    ) -> None:
        super().__init__()
        self._rule, self._model, self._logits, self._states = rule, model, logits, (ours, theirs)
        self.number = 0
        self._hand_over: Callable[..., Any] = torch.compiler.disable(self._term)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.cross_entropy:
            return self._hand_over(_values(args, kwargs))
        return function(*args, **(kwargs or {}))

    def _term(self, values: Mapping[str, Any]) -> Tensor:
        number = self.number
        self.number += 1
        if number >= len(self._logits):
            return F.cross_entropy(**values)  # the loss is refused at its end
        return self._rule.term(self._model, self._logits[number], values, *self._states)


_SIGNATURE = inspect.signature(F.cross_entropy)


def _values(args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a cross-entropy by name."""
    given = _SIGNATURE.bind(*args, **(kwargs or {}))
    given.apply_defaults()
    return dict(given.arguments)


def _real(logits: Tensor) -> Tensor:
    """Compute logits that a technique has put off: both losses need all of them."""
    return logits.computed() if isinstance(logits, DeferredLogits) else logits


@contextmanager
def _outputs_of(model: nn.Module, layers: Sequence[int]) -> Iterator[list[Any]]:
    """Collect what some layers of a model return in the block, in the order of the layers asked for."""
    found: dict[int, Any] = {}
    collected: list[Any] = []
    blocks = blocks_of(model) if layers else []
    handles = []
    for layer in set(layers):

        def keep(module: nn.Module, args: Any, output: Any, layer: int = layer) -> None:
            found[layer] = output[0] if isinstance(output, tuple) else output
            if len(found) == len(set(layers)):
                collected[:] = [found[one] for one in layers]

        handles.append(blocks[layer].register_forward_hook(keep))
    try:
        yield collected
    finally:
        for handle in handles:
            handle.remove()
