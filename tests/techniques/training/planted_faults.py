"""Plant the faults that a changed training could have. Tests of the proofs and benchmarks/training_gate.py share them.

A fault changes the loss, the parts of the loop, or both. It is planted behind the workload's back, as a wrong technique
would be: the description of the original stays as it is.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from whet.core.workload.training import Loss
from whet.techniques.mechanisms.module_class import AddedForward, extend
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.training_technique import Exactness

_SMALLER = 4096  # a loss over so many times more samples has gradients so many times smaller


def _same_parts(parts: Parts) -> Parts:
    return parts


def _same_loss(loss: Loss) -> Loss:
    return loss


@dataclass(frozen=True)
class Fault:
    """Describe a planted fault.

    Attributes:
        loss: Returns the faulty loss in place of the workload's.
        change: Returns the faulty parts of the loop.
        exactness: What a technique with this fault promises.
    """

    loss: Callable[[Loss], Loss] = _same_loss
    change: Callable[[Parts], Parts] = _same_parts
    exactness: Exactness = Exactness.EXACT


def scaled(factor: float) -> Callable[[Loss], Loss]:
    """Multiply the loss, and with it each gradient."""
    return lambda loss: lambda model, batch: factor * loss(model, batch)


def by_mean_of_means(loss: Loss) -> Loss:
    """Split a batch into a quarter and the rest, and give both means the same weight."""

    def total(model: nn.Module, batch: Any) -> Tensor:
        first = batch[0] if isinstance(batch, tuple) else batch
        rows = max(1, len(first) // 4)
        parts = (
            tree_map_only(Tensor, lambda x, part=part: x[part], batch) for part in (slice(rows), slice(rows, None))
        )
        return sum(loss(model, part) for part in parts) / 2

    return total


def with_group(**factors: float) -> Callable[[Parts], Parts]:
    """Multiply settings of the optimiser during each update, whatever a schedule does to them."""

    def change(parts: Parts) -> Parts:
        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                kept.append({name: group[name] for name in factors})
                group.update({name: factor * group[name] for name, factor in factors.items()})

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group, settings in zip(optimizer.param_groups, kept, strict=True):
                group.update(settings)
            kept.clear()

        kept: list[dict[str, Any]] = []
        parts.optimizer.register_step_pre_hook(before)
        parts.optimizer.register_step_post_hook(after)
        return parts

    return change


def doubled_before_update(parts: Parts) -> Parts:
    """Double the gradients between backward and update, as a scaler that scales back wrongly does."""

    def double(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in parts.model.parameters():
            if p.grad is not None:
                p.grad.mul_(2)

    parts.optimizer.register_step_pre_hook(double)
    return parts


def _middle_weight(model: nn.Module) -> nn.Parameter:
    weights = [p for p in model.parameters() if p.dim() > 1]
    return weights[len(weights) // 2]


def zeroed(parts: Parts) -> Parts:
    """Zero the gradient of one layer's weight in backward."""
    _middle_weight(parts.model).register_hook(torch.zeros_like)
    return parts


def zeroed_before_update(parts: Parts) -> Parts:
    """Zero the gradient of one layer's weight between backward and update."""
    weight = _middle_weight(parts.model)

    def zero(optimizer: Any, args: Any, kwargs: Any) -> None:
        if weight.grad is not None:
            weight.grad.zero_()

    parts.optimizer.register_step_pre_hook(zero)
    return parts


class _HalfForward(AddedForward):
    """Run forward inside autocast to float16, and return float32."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.float16):
            output = super().forward(*args, **kwargs)
        return tree_map_only(Tensor, lambda x: x.float() if x.dtype is torch.float16 else x, output)


def in_float16(parts: Parts) -> Parts:
    """Run forward and backward in float16, with gradients as small as those of a batch 4096 times as large."""
    extend(parts.model, _HalfForward)
    for p in parts.model.parameters():
        p.register_hook(lambda gradient: gradient * _SMALLER)
    return parts


def without_masters(parts: Parts) -> Parts:
    """Round the parameters to bfloat16 after each update, as training in pure bfloat16 does."""

    def round_all(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in parts.model.parameters():
            p.data = p.data.bfloat16().float()

    parts.optimizer.register_step_post_hook(round_all)
    return parts


class _SameOrder:
    """Repeat the order of the first pass in all later ones, as a sampler that is seeded anew for each pass does."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._state: Tensor | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._state is None:
            self._state = torch.get_rng_state()
        torch.set_rng_state(self._state)
        return iter(self._batches)


def in_same_order(parts: Parts) -> Parts:
    """Give each pass the order of the first."""
    return Parts(parts.model, parts.optimizer, _SameOrder(parts.batches), parts.notes)


class _Twice:
    """Yield each batch twice."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield batch
            yield batch


def with_each_batch_twice(parts: Parts) -> Parts:
    """Train on each batch twice."""
    return Parts(parts.model, parts.optimizer, _Twice(parts.batches), parts.notes)


FAULTS: dict[str, Fault] = {
    "learning rate 0.8x": Fault(change=with_group(lr=0.8)),
    "learning rate 2x": Fault(change=with_group(lr=2.0)),
    "weight decay lost": Fault(change=with_group(weight_decay=0.0)),
    "gradients doubled in backward": Fault(loss=scaled(2.0)),
    "gradients doubled before the update": Fault(change=doubled_before_update),
    "accumulation by a mean of means": Fault(loss=by_mean_of_means),
    "fp16 without a scaler": Fault(loss=scaled(1 / _SMALLER), change=in_float16, exactness=Exactness.ROUNDED),
    "one layer's gradient zeroed in backward": Fault(change=zeroed),
    "one layer's gradient zeroed before the update": Fault(change=zeroed_before_update),
    "a data order that repeats in each pass": Fault(change=in_same_order),
    "each batch twice": Fault(change=with_each_batch_twice),
    "bf16 parameters without masters": Fault(change=without_masters, exactness=Exactness.ROUNDED),
}
