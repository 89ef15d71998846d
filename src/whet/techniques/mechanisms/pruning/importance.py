"""Find the parts of a decoder that matter least: by the size of their weights, or by what the loss would lose.

First-order Taylor importance of a unit is the square of the loss's derivative by a gate on the unit, summed over
batches. Source: Molchanov et al., 2019, "Importance Estimation for Neural Network Pruning" (arXiv:1906.10771). A layer
matters by 1 - cosine between its input and its output. Source: Men et al., 2024, "ShortGPT" (arXiv:2403.03853).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import kept_generators, seed_everything
from whet.errors import OptionError, TargetError
from whet.techniques.mechanisms.evaluating import evaluating
from whet.techniques.mechanisms.pruning.cost import largest_within
from whet.techniques.mechanisms.pruning.decoders import Kept, cut_decoder, layers_of, shape_of
from whet.ui.figures import percent

Importance = Literal["magnitude", "taylor"]
IMPORTANCES = ("magnitude", "taylor")
_NORMS = ("layernorm.weight", "norm.weight")
_FINEST = 1 / 64  # of the amount that `cut_to_share` looks for
MULTIPLE = 8  # channels and widths that stay are a multiple of this, so that vector units are full


@dataclass(frozen=True)
class Scores:
    """Hold how much each part of a decoder matters; only the order within a row means anything.

    Attributes:
        layers: Of each layer, [L].
        groups: Of each key-value head in each layer, [L, K].
        channels: Of each channel of the MLP in each layer, [L, C].
        width: Of each number of the stream, [D].
    """

    layers: Tensor
    groups: Tensor
    channels: Tensor
    width: Tensor


@dataclass(frozen=True)
class Amounts:
    """Hold the shares that go, from 0 to below 1, of each kind of part.

    Attributes:
        mlp: Of the channels of each MLP.
        heads: Of the key-value heads of each layer, with their query heads.
        layers: Of the layers.
        width: Of the numbers of the stream.
    """

    mlp: float = 0.0
    heads: float = 0.0
    layers: float = 0.0
    width: float = 0.0


def first_batches(workload: TrainingWorkload, number: int) -> list[Any]:
    """Return the first batches of a training, as a run from its seed sees them. All generators stay as they are."""
    with kept_generators():
        seed_everything(workload.seed)
        batches = list(islice(workload.batches, number))
    if not batches:
        raise TargetError("batches gives no batch")
    return batches


def gradients(model: nn.Module, workload: TrainingWorkload, batch: Any) -> dict[str, Tensor]:
    """Return the gradient of the loss of one batch by each parameter, in evaluation mode. The model stays as it is."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with evaluating(model), torch.enable_grad():
        loss = workload.loss(model, batch)
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}


def decoder_scores(
    model: nn.Module, workload: TrainingWorkload, *, importance: Importance = "taylor", num_batches: int = 8
) -> Scores:
    """Return how much each part of a decoder matters.

    Args:
        workload: Its loss and its batches.
        importance: "magnitude", from the weights alone, or "taylor", from gradients on the first batches. Layers are
            always scored by what they do to the stream on these batches.

    Raises:
        OptionError: There is no such importance.
    """
    if importance not in IMPORTANCES:
        raise OptionError(f"importance must be one of {', '.join(IMPORTANCES)}, not {importance!r}")
    batches = first_batches(workload, num_batches)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    by_layer = _layer_scores(model, workload, batches)
    if importance == "magnitude":
        found = _parts(model, {name: weight.float().square() for name, weight in weights.items()})
    else:
        found = (torch.zeros(()), torch.zeros(()), torch.zeros(()))
        for batch in batches:
            slopes = gradients(model, workload, batch)
            # A gate on a unit has as its derivative the sum of gradient times weight over the unit's output weights.
            products = {name: (slopes[name] * weights[name]).float() for name in slopes}
            groups, channels, width = _parts(model, products)
            found = (found[0] + groups.square(), found[1] + channels.square(), found[2] + width.square())
    return Scores(by_layer, *found)


def _parts(model: nn.Module, values: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of values over the output weights of heads [L, K] and channels [L, C], and over the norms [D].

    The weights of the norms are gates on the numbers of the stream.
    """
    shape = shape_of(model)

    def of_layer(name: str) -> Tensor:
        found = [value for key, value in sorted(values.items(), key=lambda item: _number(item[0])) if name in key]
        return torch.stack(found)

    outputs = of_layer("self_attn.o_proj.weight").sum(1)  # [L, N H]
    groups = outputs.reshape(shape.layers, shape.groups, shape.queries * shape.head_dim).sum(2)
    channels = of_layer("mlp.down_proj.weight").sum(1)
    norms = [value for key, value in values.items() if key.endswith(_NORMS) and "self_attn" not in key]
    return groups, channels, torch.stack(norms).sum(0)


def _number(name: str) -> int:
    """Return the number of the layer in a tensor's name; -1 without one."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), -1)


@torch.no_grad()
def _layer_scores(model: nn.Module, workload: TrainingWorkload, batches: Iterable[Any]) -> Tensor:
    """Return 1 - cosine between the input and the output of each layer [L], averaged over tokens and batches."""
    layers = layers_of(model)
    sums = torch.zeros(len(layers))

    def watch(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before = args[0] if args else kwargs["hidden_states"]
            after = output if isinstance(output, Tensor) else output[0]
            sums[index] += float((1 - F.cosine_similarity(before.float(), after.float(), dim=-1)).mean())

        return hook

    hooks = [layer.register_forward_hook(watch(i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        with evaluating(model):
            for batch in batches:
                workload.loss(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return sums


def kept_by(model: nn.Module, scores: Scores, amounts: Amounts) -> Kept:
    """Return the parts of a decoder that stay: those that matter most.

    Channels and widths that stay are multiples of 8, the nearest ones; at least one layer and one head stay.
    """
    shape = shape_of(model)
    layers = _best(scores.layers, _left(shape.layers, amounts.layers))
    groups, channels = _left(shape.groups, amounts.heads), _left(shape.channels, amounts.mlp, MULTIPLE)
    return Kept(
        layers=layers,
        groups=tuple(_best(scores.groups[layer], groups) for layer in layers),
        channels=tuple(_best(scores.channels[layer], channels) for layer in layers),
        width=_best(scores.width, _left(shape.width, amounts.width, MULTIPLE)),
    )


def _left(number: int, amount: float, multiple: int = 1) -> int:
    """Return how many of so many parts stay."""
    if not 0 <= amount < 1:
        raise OptionError(f"the amount that goes must be from 0 to below 1; got {amount}")
    if multiple > number:
        multiple = 1
    wanted = round(number * (1 - amount) / multiple) * multiple
    return max(multiple, min(number, wanted))


def _best(scores: Tensor, number: int) -> tuple[int, ...]:
    """Return the places of the highest scores, in rising order."""
    return tuple(sorted(scores.topk(number).indices.tolist()))


def cut_to_share(
    model: nn.Module, scores: Scores, what: Sequence[str], call: Callable[[nn.Module], Any], keep: float
) -> nn.Module:
    """Return a smaller decoder: as little goes, the same share of each part, as leaves so many of the operations.

    Args:
        what: The parts that go: "mlp", "heads", "layers", "width".
        call: Calls a decoder with a batch.
        keep: The share of the operations that may stay, above 0 and below 1.

    Raises:
        TargetError: These parts are too few to leave so little.
    """

    def cut(amount: float) -> nn.Module:
        return cut_decoder(model, kept_by(model, scores, Amounts(**dict.fromkeys(what, amount))))

    best = largest_within(model, call, keep, cut, _FINEST)
    if best is None:
        raise TargetError(
            f"to cut {' and '.join(what)} cannot leave only {percent(keep, decimals=0)} of the operations"
        )
    return best
