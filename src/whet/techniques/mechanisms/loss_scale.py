"""Compute a model's forward and backward in float16 with a loss scale that the loop never sees.

Between the model's inputs and its outputs every gradient is multiplied by the scale, so that float16 does not lose the
small ones. What leaves the model backwards, to its parameters and its inputs, is divided by it again. So the loss, its
backward, clipping and accumulation stay as the loop wrote them. The optimiser skips a step whose gradients are not
finite, and the scale then falls; after many good steps it grows. The rule is that of torch.amp.GradScaler.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from whet.core.workload.loss_graph import graph_nodes
from whet.errors import RecipeError
from whet.techniques.mechanisms.deferred_logits import DeferredLogits
from whet.techniques.mechanisms.kept_gradients import are_kept
from whet.techniques.mechanisms.module_class import AddedForward, extend
from whet.techniques.mechanisms.optimizers import replace_step
from whet.techniques.mechanisms.parts import num_processes

_SAVED = "whet_loss_scale"
_CHECKED = 3  # forwards whose graphs are looked at
_OMIT = "leave autocast_fp16 out of the recipe"


class LossScale:
    """Hold the scale of a model's gradients, and change it after each step.

    Attributes:
        scale: The scale, float32 [1].
        is_infinite: 1 where a gradient since the last step was not finite, else 0; float32 [1].
    """

    def __init__(
        self, model: nn.Module, *, init_scale: float, growth_factor: float, backoff_factor: float, growth_interval: int
    ) -> None:
        device = next(model.parameters()).device
        self.scale = torch.full((1,), init_scale, device=device)
        self.is_infinite = torch.zeros(1, device=device)
        self.num_skipped = 0
        self._growth_tracker = torch.zeros(1, dtype=torch.int32, device=device)
        self._rule = growth_factor, backoff_factor, growth_interval
        self._has_gradients = False
        self._num_checked = 0
        self._has_stepped = False
        self._has_seen_loss = False
        self._exits: list[Any] = []  # nodes of the graphs before the first step
        self._entries: set[Any] = set()
        self._is_inside = False
        self._slots: list[tuple[dict[str, Any], str, int]] = []
        self._parameters: list[nn.Parameter] = []

    def forward(self, model: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the model's own forward, `forward`, in float16, with scaled gradients where there are any.

        Raises:
            RecipeError: Gradients would reach a parameter without being divided by the scale.
        """
        if self._is_inside:
            return forward(*args, **kwargs)
        with torch.autocast(self.scale.device.type, torch.float16):
            if not torch.is_grad_enabled():
                return _mapped(_in_float32, forward(*args, **kwargs))
            given: list[Tensor] = []
            _mapped(given.append, (args, kwargs))
            given = [x for x in given if x.requires_grad]
            self._find_parameters(model)
            entered = _Entry.apply(self, *self._parameters, *given)  # type: ignore[no-untyped-call]
            inner = {id(x): y for x, y in zip(given, entered[len(self._parameters) :], strict=True)}
            args, kwargs = _mapped(lambda x: inner.get(id(x), x), (args, kwargs))
            for names, name, index in self._slots:
                names[name] = entered[index]
            self._is_inside = True
            try:
                output = _mapped(_in_float32, forward(*args, **kwargs))
            finally:
                self._is_inside = False
                for names, name, index in self._slots:
                    names[name] = self._parameters[index]
        if self._num_checked < _CHECKED:
            _check_inside(output, entered[0].grad_fn)
            self._num_checked += 1
        output = _mapped(self._leave, output)
        if not self._has_stepped:
            self._entries.add(entered[0].grad_fn)
            _mapped(lambda x: self._exits.append(x.grad_fn), output)
        return output

    def _leave(self, x: Tensor) -> Tensor:
        return _Exit.apply(x, self.scale.clone()) if x.requires_grad else x  # type: ignore[no-untyped-call]

    def _find_parameters(self, model: nn.Module) -> None:
        """Find where the model's modules hold their parameters. They are looked for again where one has changed."""
        if self._slots and all(names.get(name) is self._parameters[index] for names, name, index in self._slots):
            return
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        index_of = {id(p): index for index, p in enumerate(self._parameters)}
        self._slots = [
            (module._parameters, name, index_of[id(p)])
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None and id(p) in index_of
        ]
        self._num_checked = 0

    def unscaled(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return gradients divided by the scale, and take note of those that are not finite."""
        made = [gradient.clone() for gradient in gradients]
        found = torch.zeros_like(self.is_infinite) if are_kept() else self.is_infinite  # a proof updates nothing
        torch._amp_foreach_non_finite_check_and_unscale_(made, found, self.scale.double().reciprocal().float())
        self._has_gradients = self._has_gradients or not are_kept()
        return made

    def attach(self, optimizer: Optimizer) -> None:
        """Have an optimiser skip steps without finite gradients, and save the scale with its state."""
        replace_step(optimizer, partial(self._step, optimizer.step))
        optimizer.register_state_dict_post_hook(self._save)
        self._watch_first_step()
        optimizer.register_load_state_dict_pre_hook(self._load)

    def _watch_first_step(self) -> None:
        """Look at the graphs of the losses until the first step is made. Tensor.backward calls what is changed here."""
        original = torch.autograd.backward

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if self._exits and not self._has_stepped:
                roots = [x.grad_fn for x in ([tensors] if isinstance(tensors, Tensor) else tensors)]
                if any(node in self._entries for node in graph_nodes(roots, self._exits)):
                    raise RecipeError(
                        "the loss uses a tensor from inside of the model, whose gradient would not be scaled; return "
                        f"it from the model's forward, or {_OMIT}"
                    )
                self._has_seen_loss = True
            original(tensors, *args, **kwargs)

        def unwatch() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        self._unwatch = unwatch
        torch.autograd.backward = backward

    def _step(self, step: Callable[[], Any]) -> None:
        """Make a step of the optimiser, or skip it, and change the scale by what was found."""
        if self._has_gradients:
            if not (self._has_stepped or self._has_seen_loss):
                raise RecipeError(f"the loop takes gradients by another call than loss.backward(); {_OMIT}")
            self._has_stepped = True
            self._exits.clear()
            self._entries.clear()
            self._unwatch()
            if num_processes() > 1:  # one process may overflow alone, and what it sums with the others reaches all
                torch.distributed.all_reduce(self.is_infinite, torch.distributed.ReduceOp.MAX)
            is_skipped = bool(self.is_infinite.item())
            torch._amp_update_scale_(self.scale, self._growth_tracker, self.is_infinite, *self._rule)
            self.is_infinite.zero_()
            self._has_gradients = False
            if is_skipped:
                self.num_skipped += 1
                return
        step()

    def _save(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        state[_SAVED] = {"scale": self.scale.item(), "growth_tracker": self._growth_tracker.item()}

    def _load(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if saved := state.get(_SAVED):
            self.scale.fill_(saved["scale"])
            self._growth_tracker.fill_(saved["growth_tracker"])


def _check_inside(output: Any, entry: Any) -> None:
    """Check in the graph of a forward that all gradients leave the model through its entry.

    Raises:
        RecipeError: Some would not be divided by the scale, or the output is of an unknown kind.
    """
    for leaf in tree_leaves(output):
        if not (leaf is None or isinstance(leaf, Tensor | bool | int | float | str)):
            raise RecipeError(
                f"the model returns a {type(leaf).__name__}, in which whet cannot see the tensors (a cache of keys and "
                f"values is left out with use_cache=False); {_OMIT}"
            )
    roots: list[Any] = []
    _mapped(lambda x: roots.append(x.grad_fn) if x.requires_grad else None, output)
    for node in graph_nodes(roots, [entry]):
        if "CheckpointFunction" in type(node).__name__:
            raise RecipeError(
                f"a reentrant checkpoint computes gradients past the loss scale; set use_reentrant=False, or {_OMIT}"
            )
        if hasattr(node, "variable") or _is_of(node, _Exit):
            raise RecipeError(
                "a module uses a tensor with gradients that is neither among its inputs nor a parameter under its "
                f"name, so that its gradient would stay scaled; {_OMIT}"
            )


def _is_of(node: Any, function: type[torch.autograd.Function]) -> bool:
    return type(node).__name__ == f"{function.__name__}Backward"


class _Entry(torch.autograd.Function):
    """Return tensors as they are, and divide their gradients by the scale."""

    @staticmethod
    def forward(ctx: Any, scale: LossScale, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.loss_scale = scale
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = iter(ctx.loss_scale.unscaled([g for g in gradients if g is not None]))
        return (None, *(None if g is None else next(made) for g in gradients))


class _Exit(torch.autograd.Function):
    """Return a tensor as it is, and multiply its gradient by the scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0].to(gradients[0].dtype), None


_SCALES: WeakKeyDictionary[nn.Module, LossScale] = WeakKeyDictionary()


class _Scaled(AddedForward):
    """Run forward in float16, with a loss scale."""

    is_eager = True

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]
        if (scale := _SCALES.get(self)) is not None:
            return scale.forward(self, forward, args, kwargs)
        if torch.is_grad_enabled() and self.training:
            raise RecipeError("this is a copy of a model in float16, without its loss scale; prepare the copy as well")
        return forward(*args, **kwargs)


def scale_gradients(model: nn.Module, optimizer: Optimizer, scale: LossScale) -> None:
    """Have a model compute in float16 and its optimiser skip overflowed steps. The model keeps a scale that it has."""
    scale = _SCALES.setdefault(model, scale)
    extend(model, _Scaled)
    scale.attach(optimizer)


def loss_scale_of(model: nn.Module) -> LossScale | None:
    return _SCALES.get(model)


def _mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    return tree_map_only(Tensor, function, value)


def _in_float32(x: Tensor) -> Tensor:
    x = x.computed() if isinstance(x, DeferredLogits) else x
    return x.float() if x.dtype is torch.float16 else x
