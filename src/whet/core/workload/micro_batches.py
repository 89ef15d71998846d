"""Compute the gradients of a batch in several parts, as if it had been computed at once: whet.micro_batches.

The losses of torch.nn.functional are watched while a part is computed, so that it is known over how many valid targets
each one is a mean. The gradients are then those of the mean over the whole batch, not a mean of means. While the parts
are computed, the gradients hold the sum so far, divided by the targets of the latest part: no second copy is needed.
"""

import contextlib
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from whet.core.workload.batch_parts import OMIT, num_samples_of, parts_of
from whet.core.workload.loss_graph import check_graph
from whet.errors import RecipeError

_WEIGHTED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")  # divided by the sum of weights, if there are any
_LOSSES = ("cross_entropy", "nll_loss", *_WEIGHTED, "binary_cross_entropy", "binary_cross_entropy_with_logits")
_SAME = 1e-6  # relative
_current = threading.local()  # the part that this thread computes


class _Plan:
    """Hold into how many parts the batches of a model are split.

    Attributes:
        parameters: Everything that has gradients in the loop.
        checked: The ways from backward's root to the losses whose whole graphs have been looked at.
        is_used: Whether the loop has split a batch yet.
    """

    def __init__(self, number: int, parameters: Iterable[nn.Parameter]) -> None:
        self.number = number
        self.parameters = list({id(p): p for p in parameters}.values())
        self.checked: set[tuple[str, ...]] = set()
        self.is_used = False

    def check_before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Check, before a step of the optimiser, that the loop splits its batches, unless a closure is yet to do so."""
        if not (args or kwargs.get("closure")):
            self.check_used()

    def check_used(self, *_: Any) -> None:
        if not self.is_used:
            raise RecipeError(
                "the recipe splits each batch into parts, but the loop computes whole ones: put `for batch in "
                f"whet.micro_batches(model, batch):` around forward and backward, or {OMIT}"
            )


_PLANS: WeakKeyDictionary[nn.Module, _Plan] = WeakKeyDictionary()


def split_batches(model: nn.Module, optimizer: Optimizer, number: int) -> None:
    """Have `micro_batches` split a model's batches in so many parts. The optimiser won't step in a loop without it."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    plan = _PLANS[model] = _Plan(number, [*held, *model.parameters()])
    optimizer.register_step_pre_hook(plan.check_before)
    optimizer.register_step_post_hook(plan.check_used)


def micro_batches(model: nn.Module, batch: Any, *, factor: float = 1.0) -> "MicroBatches":
    """Split a batch as the recipe of a model says, for a loop over its parts.

        for x, y in whet.micro_batches(model, (x, y)):
            loss = F.cross_entropy(model(x), y)
            loss.backward()

    After the loop the gradients are those of the whole batch, and what is left of the step (clipping, the optimiser,
    the schedule) is done once. A batch is one part where no recipe says otherwise.

    Args:
        model: The model, as whet.prepare returned it or as another library has wrapped it since.
        batch: A tensor, or tuples, lists and dicts of tensors whose first dimension is that of the samples.
        factor: What the loop multiplies each loss by before backward, such as 0.25 where it sums 4 batches.

    Returns:
        The parts, to be iterated over once.
    """
    plan = _PLANS.get(model)
    while plan is None and isinstance(inner := getattr(model, "module", None), nn.Module):
        model, plan = inner, _PLANS.get(inner)
    return MicroBatches(plan, batch, factor)


def counted(compute: Callable[[], Tensor], count: float, *, is_sum: bool = False) -> Tensor:
    """Compute a loss of a loop's own, so that the parts of a batch are weighed by its targets.

    The losses of torch.nn.functional need no such help. Those that are taken within it are parts of this one.

    Args:
        compute: Computes the loss: a mean over the targets, or a sum over them.
        count: The number of targets in this part of the batch. Where it is 0, the loss must be 0, not NaN.
    """
    part = getattr(_current, "part", None)
    if part is None:
        return compute()
    _current.part = None
    try:
        loss = compute()
    finally:
        _current.part = part
    found: Tensor = part.noted(loss, 1.0 if is_sum else float(count), is_sum)
    return found


class MicroBatches:
    """Iterate over the parts of a batch, and leave the gradients of the whole batch at the end."""

    def __init__(self, plan: _Plan | None, batch: Any, factor: float) -> None:
        self._plan, self._factor = plan, factor
        self._parts = [batch] if plan is None else parts_of(batch, plan.number)
        self._counts: list[float] = []  # the valid targets of each part
        self._shares: list[tuple[float, bool]] = []
        self._is_sum = False

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Any]:
        """Yield the parts, or raise RecipeError where a part's loss is not seen or cannot be added to the others'."""
        plan = self._plan
        if plan is None or len(self._parts) == 1:
            yield from self._parts
            if plan is not None:
                plan.is_used = True
            return
        before = _taken(plan.parameters)  # what the loop has summed already
        try:
            for batch in self._parts:
                part = _Part(self, plan, num_samples_of(batch))
                with part.watched():
                    yield batch
                part.close(self._factor)
            self._average(plan)
        except BaseException:
            _taken(plan.parameters)
            raise
        finally:
            _given_back(before)
        plan.is_used = True

    def whole(self, losses: Sequence[Tensor]) -> Tensor:
        """Return the loss of the whole batch from the loss of each part, a tensor of one element each."""
        if len(self._parts) == 1:
            return losses[0]
        total = torch.stack([loss * count for loss, count in zip(losses, self._counts, strict=True)]).sum()
        return total if self._is_sum else total / sum(self._counts)

    def add(self, count: float, is_sum: bool, parameters: Sequence[nn.Parameter]) -> None:
        """Take the valid targets of the next part, and scale the gradients so far for its own to be added.

        `count` is the number of targets that its loss is a mean of; 1 for a sum.
        """
        self._is_sum = is_sum
        if count and (latest := next((old for old in reversed(self._counts) if old), count)) != count:
            _scale(parameters, latest / count)
        self._counts.append(count)

    def has_same_shares(self, counts: Sequence[tuple[float, bool]]) -> bool:
        """Return whether the targets of several losses are divided among the parts in the same way.

        `counts` holds the targets of each loss of a part, and whether it is a sum.
        """
        shares = [(count / counts[0][0], is_sum) for count, is_sum in counts]
        self._shares = self._shares or shares
        return shares == self._shares and len({is_sum for _, is_sum in counts}) == 1

    def _average(self, plan: _Plan) -> None:
        latest = next((count for count in reversed(self._counts) if count), 0.0)
        if latest and not self._is_sum:
            _scale(plan.parameters, latest / sum(self._counts))


class _Part:
    """Watch the losses of one part of a batch, and check that they can be added."""

    def __init__(self, whole: MicroBatches, plan: _Plan, num_samples: int) -> None:
        self._whole, self._plan, self._num_samples = whole, plan, num_samples
        self._counts: list[tuple[float, bool]] = []  # the targets of each loss, and whether it is a sum
        self._factors: list[Tensor] = []  # what each loss is multiplied by in the loop
        self._losses: list[Any] = []  # their nodes in the graph
        self._num_checked = 0
        self._held: list[tuple[nn.Parameter, Tensor]] = []  # the sum so far, while a part without targets is computed

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        original = torch.autograd.backward
        torch.autograd.backward = wraps(original)(self._checked(original))
        _current.part = self
        try:
            with _WATCHER:
                yield
        finally:
            _current.part = None
            torch.autograd.backward = original

    def _checked(self, backward: Callable[..., None]) -> Callable[..., None]:
        """Return a backward that looks at the loss's graph first. Tensor.backward calls it."""

        def checked(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(_current, "part", None) is self:
                roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
                if self._losses:
                    check_graph([r.grad_fn for r in roots], self._losses, self._plan.parameters, self._plan.checked)
                self._num_checked += 1
            backward(tensors, *args, **kwargs)

        return checked

    def losses_of(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute a loss of torch.nn.functional, and take note of how many targets it is a mean of."""
        given = _SIGNATURES[name].bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        count, is_sum = _count(name, values, self._num_samples), values["reduction"] == "sum"
        if count == 0:
            given.arguments["reduction"] = "sum"  # the mean of nothing is not a number
        return self.noted(original(*given.args, **given.kwargs), count, is_sum)

    def noted(self, loss: Any, count: float, is_sum: bool) -> Any:
        """Take note of a loss, and return it. `count` is the targets that it is a mean of; 1 for a sum."""
        if not (torch.is_grad_enabled() and isinstance(loss, Tensor) and loss.requires_grad):
            return loss
        if not self._counts:
            if count == 0:
                self._held = _taken(self._plan.parameters)
            self._whole.add(count, is_sum, self._plan.parameters)
        self._counts.append((count, is_sum))
        loss.register_hook(self._factors.append)
        self._losses.append(loss.grad_fn)
        return loss

    def close(self, factor: float) -> None:
        """Check, after backward, that the loss was the watched one and nothing else."""
        if not self._losses:
            raise RecipeError(
                "the loop takes no loss of torch.nn.functional whose reduction whet could see, so that the parts of a "
                f"batch cannot be weighed; take one of {', '.join(_LOSSES)}, or {OMIT}"
            )
        if len(self._factors) != len(self._losses) or self._num_checked != 1:
            raise RecipeError(f"the loop must call backward once for each part, with every loss it takes, or {OMIT}")
        if not self._counts[0][0]:  # no valid target: nothing is to be added, not even other terms
            _taken(self._plan.parameters)
            _given_back(self._held)
            return
        if not self._whole.has_same_shares(self._counts):
            raise RecipeError(
                f"the loop adds losses, and the number of targets of one is not proportional to the other's; {OMIT}"
            )
        found = [float(one) for one in self._factors]
        if any(not math.isclose(one, factor, rel_tol=_SAME) for one in found):
            raise RecipeError(
                f"the loop multiplies the loss by {found[0]:g}, and whet cannot see whether that depends on the batch; "
                f"if it does not, call micro_batches(model, batch, factor={found[0]:g}), or {OMIT}"
            )


def _count(name: str, values: Mapping[str, Any], num_samples: int) -> float:
    """Return how many targets a loss is a mean of; 1 for a sum.

    `values` holds the loss's arguments by name.

    Raises:
        RecipeError: It is reduced in another way.
    """
    logits, target, weight = values["input"], values["target"], values.get("weight")
    if values["reduction"] == "sum":
        return 1.0
    if values["reduction"] != "mean" or values.get("reduce") is not None or values.get("size_average") is not None:
        raise RecipeError(f"{name} is not reduced to a mean or a sum, so that the parts cannot be weighed; {OMIT}")
    if name in _WEIGHTED and weight is not None:
        raise RecipeError(f"{name} with weights is a mean that whet does not know; {OMIT}")
    if name not in ("cross_entropy", "nll_loss"):
        return float(math.prod(torch.broadcast_shapes(logits.shape, target.shape)))
    if logits.dim() == 2 and logits.shape[1] == logits.shape[0] == num_samples:
        raise RecipeError(
            f"{name} has as many classes as there are samples in a part, as a loss that compares samples with each "
            f"other has; choose another number of parts, or {OMIT}"
        )
    if target.is_floating_point():
        return float(logits.numel() / logits.shape[1 if logits.dim() > 1 else 0])
    valid = target[target != values["ignore_index"]]
    return float(len(valid) if weight is None else weight[valid].sum())


class _Watcher(TorchFunctionMode):
    """Hand the losses of torch.nn.functional to the part that this thread computes.

    Attributes:
        hand_over: Calls a loss for the part, outside of what is compiled. It is made on entering, since it loads the
            compiler, which only loops with parts need.
    """

    hand_over: Any = None

    def __enter__(self) -> "_Watcher":
        if self.hand_over is None:
            self.hand_over = torch.compiler.disable(_watched_loss)
        return super().__enter__()  # type: ignore[no-untyped-call,no-any-return]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _NAMES.get(function)
        return function(*args, **kwargs) if name is None else self.hand_over(name, function, args, kwargs)


def _watched_loss(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    part = _current.part
    return function(*args, **kwargs) if part is None else part.losses_of(name, function, args, kwargs)


_SIGNATURES = {name: inspect.signature(getattr(F, name)) for name in _LOSSES}
_NAMES = {getattr(F, name): name for name in _LOSSES}
_WATCHER = _Watcher()


def _scale(parameters: Iterable[nn.Parameter], factor: float) -> None:
    if gradients := [p.grad for p in parameters if p.grad is not None]:
        torch._foreach_mul_(gradients, factor)


def _taken(parameters: Iterable[nn.Parameter]) -> list[tuple[nn.Parameter, Tensor]]:
    """Take the gradients away from parameters, and return them."""
    found = [(p, p.grad) for p in parameters if p.grad is not None]
    for p, _ in found:
        p.grad = None
    return found


def _given_back(gradients: Iterable[tuple[nn.Parameter, Tensor]]) -> None:
    """Add gradients that `_taken` returned to those that there are."""
    for p, gradient in gradients:
        p.grad = gradient if p.grad is None else p.grad.add_(gradient)
