"""Rank layers by how much an int8 quantiser hurts them.

One layer at a time computes with int8 weights and activations, on a few calibration batches. The error that this causes
in the outputs is the layer's damage. Nothing is exported: hooks round the input, and the rounded weight replaces the
original one while the model runs.

Source: Nagel et al., "A White Paper on Neural Network Quantization", 2021 (arXiv:2106.08295), section 3.7.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from whet.techniques.quantisation import quantisable

NUM_BATCHES = 2
_LEVELS = 255


def rank_layers(module: nn.Module, batches: Sequence[tuple[Tensor, ...]]) -> list[tuple[str, float]]:
    """Rank the layers that an int8 quantiser would change.

    Args:
        module: A module in eval mode. It is unchanged afterwards.
        batches: Flat inputs, of which the first NUM_BATCHES are used.

    Returns:
        (name, damage) for each layer, the most damaging first. The damage is the squared error of the outputs that
        quantising this layer alone causes, as a fraction of their squared size.
    """
    batches = batches[:NUM_BATCHES]
    layers = dict(quantisable.find_layers(module))
    with torch.no_grad():
        wanted = [module(*batch) for batch in batches]
        damages = {}
        for name, layer in layers.items():
            with _rounded(layer):
                found = [module(*batch) for batch in batches]
            damages[name] = _damage(found, wanted)
    # equal damages in the order of the model
    return sorted(damages.items(), key=lambda item: -item[1])


@contextmanager
def _rounded(layer: nn.Module) -> Iterator[None]:
    """A layer that computes as int8 kernels would."""
    parameter = quantisable.weight_of(layer)
    weight = parameter.data
    handle = layer.register_forward_pre_hook(lambda _, args: (round_activation(args[0]), *args[1:]))
    parameter.data = round_weight(weight)
    try:
        yield
    finally:
        parameter.data = weight
        handle.remove()


def round_activation(x: Tensor) -> Tensor:
    """Round a tensor to 256 levels between its smallest and largest value. Zero is one of the levels."""
    if not x.is_floating_point() or not x.numel():
        return x
    low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
    scale = ((high - low) / _LEVELS).clamp(min=torch.finfo(torch.float32).tiny)
    zero = (-low / scale).round()
    return ((x / scale + zero).round().clamp(0, _LEVELS) - zero) * scale


def round_weight(weight: Tensor) -> Tensor:
    """Round a weight to 255 levels around zero, with one scale per output channel."""
    scale = weight.abs().amax(dim=tuple(range(1, weight.dim())), keepdim=True) / 127
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scale).round() * scale


def _damage(found: Sequence[tuple[Tensor, ...]], wanted: Sequence[tuple[Tensor, ...]]) -> float:
    error = size = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            if b.is_floating_point():
                is_finite = a.isfinite() & b.isfinite()
                a, b = a[is_finite], b[is_finite]
                error += float((a.double() - b.double()).square().sum())
                size += float(b.double().square().sum())
    return error / size if size else error
