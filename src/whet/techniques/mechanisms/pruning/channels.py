"""Cut channels out of convolutions and linear layers, with everything that depends on them, by torch-pruning.

Channels that are added to each other, as by a residual connection, go together: torch-pruning finds such groups in the
model's autograd graph. Source: Fang et al., 2023, "DepGraph: Towards Any Structural Pruning" (arXiv:2301.12900).
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.signature import output_tensors
from whet.errors import MissingExtra, TargetError, reason
from whet.techniques.mechanisms.evaluating import evaluating
from whet.techniques.mechanisms.pruning.cost import largest_within
from whet.ui.figures import percent

Call = Callable[[nn.Module], Any]
"""Call a model, or a copy of it with fewer channels, with inputs of its own."""

_MOST = 0.9  # of the channels of a group, so that none vanishes
_ROUND_TO = 8  # channels that stay are a multiple of this, so that vector units are full
_PRECISION = 1 / 32  # of the ratio that is looked for


def _library() -> Any:
    try:
        import torch_pruning
    except ImportError as error:
        raise MissingExtra("torch-pruning", "compress", "cutting channels") from error
    return torch_pruning


def with_fewer_channels(
    model: nn.Module, call: Call, ratio: float, slopes: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return a copy of a model without the channels that matter least in the whole model. The model stays as it is.

    The channels of the outputs all stay. The others are compared over all layers; at most nine tenths of a group of
    dependent channels go.

    Args:
        ratio: The share of all channels that goes.
        slopes: The gradient of the loss by each parameter, for first-order Taylor importance; None takes the size of
            the weights.

    Raises:
        MissingExtra: torch-pruning is not installed.
        TargetError: The model has no channels that can go, or does not work without them.
    """
    small = _cut(model, call, ratio, slopes)
    if small is None:
        raise TargetError("it has no channels that can go")
    return small


def _cut(model: nn.Module, call: Call, ratio: float, slopes: Mapping[str, Tensor] | None) -> nn.Module | None:
    """Return a copy without the channels that matter least; None where none goes."""
    library = _library()
    small = copy.deepcopy(model)
    for name, weight in small.named_parameters():
        weight.requires_grad_(True)  # torch-pruning follows the autograd graph
        weight.grad = None if slopes is None or name not in slopes else slopes[name].clone()
    kinds = library.importance
    importance = kinds.GroupMagnitudeImportance() if slopes is None else kinds.GroupTaylorImportance()
    expected = [y.shape for y in _outputs(small, call)]
    before = {name: weight.shape for name, weight in small.named_parameters()}
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is checked below
            library.pruner.BasePruner(
                small,
                example_inputs=(),
                importance=importance,
                global_pruning=True,
                pruning_ratio=ratio,
                max_pruning_ratio=_MOST,
                round_to=_ROUND_TO,
                ignored_layers=_output_layers(library, small, call),
                forward_fn=lambda model, inputs: call(model),
                output_transform=output_tensors,
            ).step()
        found = [y.shape for y in _outputs(small, call)]
    except Exception as error:  # the library meets every kind of graph
        raise TargetError(f"its channels cannot be cut: {reason(error)}") from error
    if found != expected:
        raise TargetError("its channels cannot be cut: its outputs would have other shapes")
    if all(weight.shape == before[name] for name, weight in small.named_parameters()):
        return None
    for weight, original in zip(small.parameters(), model.parameters(), strict=True):
        weight.requires_grad_(original.requires_grad)
        weight.grad = None
    return small.train(model.training)


def with_share_of_work(
    model: nn.Module, call: Call, keep: float, slopes: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return a copy with as many channels as leave at most this share of the operations; see `with_fewer_channels`.

    Args:
        keep: The share of the operations that may stay, above 0 and below 1.

    Raises:
        TargetError: Even with the fewest channels the model computes more.
    """
    best = largest_within(model, call, keep, lambda ratio: _cut(model, call, ratio, slopes), _PRECISION)
    if best is None:
        raise TargetError(f"no cut of its channels leaves only {percent(keep, decimals=0)} of the operations")
    return best


def _outputs(model: nn.Module, call: Call) -> tuple[Tensor, ...]:
    with evaluating(model), torch.no_grad():
        return output_tensors(call(model))


def _output_layers(library: Any, model: nn.Module, call: Call) -> list[nn.Module]:
    """Return the layers whose channels reach an output of the model, and so must all stay."""
    graph = library.DependencyGraph().build_dependency(
        model,
        example_inputs=(),
        forward_fn=lambda model, inputs: call(model),
        output_transform=output_tensors,
        verbose=False,
    )
    waiting = [node for node in graph.module2node.values() if not node.outputs]
    found: list[nn.Module] = []
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node.module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.modules.conv._ConvTransposeNd):
            found.append(node.module)
        else:
            waiting += node.inputs
    return found
