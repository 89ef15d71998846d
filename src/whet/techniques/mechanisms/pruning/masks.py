"""Set the smallest weights of a model to zero, and keep them exactly zero while it is trained.

Source: Han et al., 2015, "Learning both Weights and Connections" (arXiv:1506.02626); Mishra et al., 2021, "Accelerating
Sparse Deep Neural Networks" (arXiv:2104.08378), for n:m patterns.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from whet.core.workload.plain_parameters import plain_parameters
from whet.errors import OptionError

Scope = Literal["global", "layer"]
SCOPES = ("global", "layer")


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that pruning may set to zero, by name: matrices and kernels, without embeddings.

    A weight that an embedding shares, as a tied output layer does, is left alone, since rows of an embedding are
    vectors of rare tokens and not connections. So are parameters that no product multiplies, as the rates of scans.
    """
    embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    left_alone = embedded | plain_parameters(model)
    return {
        name: weight
        for name, weight in model.named_parameters()
        if weight.dim() >= 2 and weight.is_floating_point() and weight.requires_grad and id(weight) not in left_alone
    }


def magnitude_masks(weights: Mapping[str, Tensor], amount: float, scope: Scope = "global") -> dict[str, Tensor]:
    """Return which weights stay, bool of the weights' shapes, where the smallest ones by magnitude go.

    Exactly round(amount x number) weights go: of all of them together, or of each tensor.

    Args:
        amount: The share that goes, from 0 to 1.
        scope: "global" for one threshold over all tensors, "layer" for one in each.

    Raises:
        OptionError: The amount or the scope is none.
    """
    return _without_smallest({name: weight.detach().abs() for name, weight in weights.items()}, amount, scope)


def pattern_masks(weights: Mapping[str, Tensor], kept: int, of: int) -> dict[str, Tensor]:
    """Return masks that leave the `kept` largest of each `of` weights in a row, as 2:4 for GPUs' sparse products.

    A row runs along the last dimension, the inputs of a linear layer.

    Raises:
        OptionError: The pattern is none, or a row is no multiple of `of` long.
    """
    if not 0 < kept < of:
        raise OptionError(f"a pattern n:m needs 0 < n < m; got {kept}:{of}")
    masks = {}
    for name, weight in weights.items():
        if weight.shape[-1] % of:
            raise OptionError(f"the rows of {name} have {weight.shape[-1]} weights, no multiple of {of}")
        groups = weight.detach().abs().reshape(-1, of)
        mask = torch.zeros_like(groups, dtype=torch.bool)
        mask.scatter_(1, groups.topk(kept, dim=1).indices, True)
        masks[name] = mask.reshape(weight.shape)
    return masks


def _without_smallest(sizes: Mapping[str, Tensor], amount: float, scope: Scope) -> dict[str, Tensor]:
    """Return masks that are false for the smallest values, as `magnitude_masks` describes.

    Raises:
        OptionError: The amount or the scope is none.
    """
    if not 0 <= amount <= 1:
        raise OptionError(f"amount must be from 0 to 1; got {amount}")
    if scope not in SCOPES:
        raise OptionError(f"scope must be one of {', '.join(SCOPES)}, not {scope!r}")
    if scope == "layer":
        return {name: _kept(size.reshape(-1), amount).reshape(size.shape) for name, size in sizes.items()}
    joined = torch.cat([size.reshape(-1).float() for size in sizes.values()])
    parts = _kept(joined, amount).split([size.numel() for size in sizes.values()])
    return {name: part.reshape(sizes[name].shape) for name, part in zip(sizes, parts, strict=True)}


def _kept(sizes: Tensor, amount: float) -> Tensor:
    """Return which of the values [N] stay where the smallest go."""
    number = round(amount * sizes.numel())
    mask = torch.ones_like(sizes, dtype=torch.bool)
    if number:
        mask[sizes.topk(number, largest=False).indices] = False
    return mask


class Masks:
    """Hold weights of a model at exactly zero, through any optimiser's steps, until they are made permanent.

    Gradients of weights that are zero are set to zero too, so that they are in no norm of gradients. `enforce` after
    each step sets to zero again what momentum or a decay has moved.

    Args:
        model: The model. Its parameters stay the objects that they are.
        names: The names of the weights that may be masked; those of `prunable` by default.

    Raises:
        OptionError: The model has no such weights.
    """

    def __init__(self, model: nn.Module, names: Iterable[str] | None = None) -> None:
        found = prunable(model) if names is None else dict(model.named_parameters())
        wanted = list(found) if names is None else list(names)
        if missing := [name for name in wanted if name not in found]:
            raise OptionError(f"the model has no weight {missing[0]!r} to prune")
        if not wanted:
            raise OptionError("the model has no matrices or kernels that pruning could set to zero")
        self.weights: dict[str, nn.Parameter] = {name: found[name] for name in wanted}
        self.kept: dict[str, Tensor] = {
            name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self.weights.items()
        }
        self._hooks = [w.register_hook(self._masking(name)) for name, w in self.weights.items() if w.requires_grad]

    def _masking(self, name: str) -> Callable[[Tensor], Tensor]:
        return lambda gradient: gradient * self.kept[name]

    @property
    def sparsity(self) -> float:
        """Return the share of the masked weights that are zero."""
        total = sum(mask.numel() for mask in self.kept.values())
        return 1 - sum(int(mask.sum()) for mask in self.kept.values()) / total

    def cut(self, amount: float, scope: Scope = "global") -> None:
        """Set the smallest weights to zero. Those that are zero already are among them.

        Args:
            amount: The share of the weights that is zero afterwards.
            scope: "global" or "layer"; see `magnitude_masks`.
        """
        # What is masked counts as smaller than any other zero, so that nothing comes back.
        sizes = {name: w.detach().abs().masked_fill(~self.kept[name], -1.0) for name, w in self.weights.items()}
        self.use(_without_smallest(sizes, amount, scope))

    def use(self, masks: Mapping[str, Tensor]) -> None:
        """Take these masks, bool by name, and set the weights to zero where they are false.

        Raises:
            OptionError: A mask is of no weight here, or has another shape.
        """
        for name, mask in masks.items():
            if name not in self.weights or mask.shape != self.weights[name].shape:
                raise OptionError(f"the mask of {name} fits no weight of this model")
        self.kept |= {name: mask.bool().to(self.weights[name].device) for name, mask in masks.items()}
        self.enforce()

    @torch.no_grad()
    def enforce(self) -> None:
        """Set the masked weights to zero, as after each optimiser step."""
        for name, weight in self.weights.items():
            weight.masked_fill_(~self.kept[name], 0.0)

    def make_permanent(self) -> None:
        """Leave the zeros in the weights, and let go of the model: later steps may change them."""
        self.enforce()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
