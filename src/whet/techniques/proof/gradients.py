"""Prove that a changed loop computes the gradients of the original, parameter by parameter, against float64.

A loss curve hides much: AdamW divides by the size of the gradient, so a wrong scale changes no loss. So the gradients
of several batches are held against those of the same model in float64. An exact technique may be as far from them as
twice the original's own rounding. A technique that rounds is judged by the direction and the length of each gradient.

Large gradients are compared in a fixed sample of their numbers; their norms are of all numbers.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from whet.core.workload.micro_batches import micro_batches
from whet.core.workload.training import Loss, seed_everything
from whet.parallel.pieces import whole_of
from whet.techniques.mechanisms.kept_gradients import kept_gradients
from whet.techniques.training_technique import Exactness
from whet.ui.figures import percent

NUM_BATCHES = 3
_MOST_SAMPLED = 65_536  # numbers of one parameter
_EXACT = 2.0  # times the original's own error
_LEAST_ERROR = 5e-6  # relative: sums of thousands of float32 numbers in another order. A fault is 1e-3 or more
_LEAST_COSINE = 0.98  # of a gradient with 8 bits of mantissa throughout
_MOST_NORM = 0.05  # the same gradient's length may differ by this part
_ROUNDING = 0.1  # the original's own error from which on a gradient is rounding alone, as a bias before a batch norm
_MOST_OTHER_DROPOUT = 1e-3  # relative difference of all gradients from the same seed with dropout on
_TIMES_MOVED = {"error": 4.0, "bend": 8.0, "length": 4.0}  # a move is one draw, and a variant rounds throughout
_MOST_BENT, _MOST_LONG = 0.5, 0.4  # whatever moves: a zeroed gradient is bent by 1, a doubled one longer by 1
_MOST_EXACT_NORM = 1e-3  # the norm of all numbers, those outside of the sample included, for exact techniques


Moves = Callable[[str, str], float]
"""Take "error", "bend" or "length" and a gradient's name, and return how far rounding alone may move it."""


class GradientProof(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """Say how the gradients of a changed loop compare with those in float64.

    Attributes:
        is_same: Whether they are the gradients of the original, as far as the techniques promise.
        error: The largest relative error of any parameter's gradient.
        original_error: The original's own largest one.
        cosine: The smallest cosine of any parameter's gradient with its reference.
        norm_ratio: The norm over the reference's that is furthest from 1.
        parameter: The parameter that is furthest off.
    """

    is_same: bool
    words: str
    error: float = 0.0
    original_error: float = 0.0
    cosine: float = 1.0
    norm_ratio: float = 1.0
    parameter: str = ""


def gradients_of(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    *,
    seed: int,
    drops: bool = False,
    backward: Callable[[Any], None] | None = None,
) -> dict[str, Tensor]:
    """Return a sample of each parameter's gradient for each batch, and its norm, in float64.

    The parameters are not changed; buffers, as those of batch norms, are put back.

    Args:
        model: The model, in training mode.
        batches: One gradient is taken for each.
        seed: The seed before each batch.
        drops: Whether dropout stays on.
        backward: Computes the gradients of a batch, where several processes share it; all call this.

    Returns:
        "BATCH.NAME" -> the sampled numbers [n]; "norm.BATCH.NAME" -> the norm of all, [1].
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found: dict[str, Tensor] = {}
    with contextlib.nullcontext() if drops else without_dropout(model), kept_gradients():
        for i, batch in enumerate(batches):
            model.zero_grad(set_to_none=True)
            seed_everything(seed)
            if backward is not None:
                backward(batch)
            else:
                for part in micro_batches(model, batch):
                    loss(model, part).backward()
            for name, p in model.named_parameters():
                if p.grad is not None:
                    found |= noted(f"{i}.{name}", p.grad)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return found


def noted(key: str, gradient: Tensor) -> dict[str, Tensor]:
    """Return a sample of a gradient under its key, and the norm under "norm." and the key.

    Of one that processes hold parts of, it is the whole; all must call this.
    """
    whole = whole_of(gradient)
    return {key: sample(whole), f"norm.{key}": whole.double().norm().reshape(1).cpu()}


def reference_gradients(model: nn.Module, loss: Loss, batches: Sequence[Any], *, seed: int) -> dict[str, Tensor]:
    """Return the gradients of a copy of the model in float64; see gradients_of."""
    precise = copy.deepcopy(model).double().train()
    return gradients_of(precise, loss, [in_float64(batch) for batch in batches], seed=seed)


def in_float64(batch: Any) -> Any:
    """Return a batch whose floating-point tensors are float64."""
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, batch)


def write(gradients: dict[str, Tensor], path: Path) -> None:
    """Write gradients to a safetensors file."""
    save_file(gradients, path)


def read(path: Path) -> dict[str, Tensor]:
    return load_file(path)


def judged(
    found: dict[str, Tensor],
    original: dict[str, Tensor],
    reference: dict[str, Tensor],
    exactness: Exactness,
    moved: Mapping[str, Tensor] = MappingProxyType({}),
    *,
    against: str = "float64",
) -> GradientProof:
    """Judge the gradients of a changed loop.

    Args:
        reference: Those in float64.
        moved: How far the original's own gradients move under rounding; see whet.techniques.proof.sensitivity.
        against: What the reference is, in words.
    """
    if found.keys() != reference.keys():
        missing = sorted(reference.keys() - found.keys()) or sorted(found.keys() - reference.keys())
        name = missing[0].removeprefix("norm.").partition(".")[2]
        return GradientProof(is_same=False, words=f"{name} has a gradient on one side only", parameter=name)
    names = [name for name in reference if not name.startswith("norm.")]
    counts = [name for name in names if _error(original[name], reference[name]) < _ROUNDING]
    worst = next((name for name in names if not _is_finite(found, name)), None)
    if worst is not None:
        name = plain(worst)
        return GradientProof(is_same=False, words=f"the gradient of {name} is not finite", parameter=name)
    own = {name: _error(original[name], reference[name]) for name in counts}
    errors = {name: _error(found[name], reference[name]) for name in counts}

    def moves(kind: str, name: str) -> float:
        value = moved.get(f"{kind}.{plain(name)}")
        return 0.0 if value is None else _TIMES_MOVED[kind] * float(value)

    if exactness is Exactness.EXACT:
        ratios = {name: float(found[f"norm.{name}"] / reference[f"norm.{name}"]) for name in counts}
        return _judged_exact(errors, own, ratios, moves, against)
    return _judged_rounded(found, reference, errors, own, moves)


def _judged_exact(
    errors: dict[str, float], own: dict[str, float], ratios: dict[str, float], moves: Moves, against: str
) -> GradientProof:
    """Judge by the error of each parameter, beside the original's own, and by the norm of all its numbers."""
    typical = sorted(own.values())[len(own) // 2] if own else 0.0
    allowed = {
        name: max(_EXACT * own[name], _EXACT * typical, _LEAST_ERROR, min(moves("error", name), _ROUNDING))
        for name in own
    }
    long = next((name for name, x in ratios.items() if abs(x - 1) > max(_MOST_EXACT_NORM, allowed[name])), None)
    if long is not None:
        words = f"other gradients: the norm of {plain(long)}'s is {ratios[long]:.4f} times that in {against}"
        return GradientProof(is_same=False, words=words, norm_ratio=ratios[long], parameter=plain(long))
    worst = max(errors, key=lambda name: errors[name] / allowed[name], default="")
    error, most = errors.get(worst, 0.0), max(own.values(), default=0.0)
    is_same = all(errors[name] <= allowed[name] for name in errors)
    name = plain(worst)
    told = f"relative error {error:.1e} against {against} in {name}; the original's own is {own.get(worst, 0.0):.1e}"
    words = (
        f"same gradients: {told}"
        if is_same
        else f"other gradients: {told}, and {allowed.get(worst, 0.0):.1e} is allowed"
    )
    return GradientProof(is_same=is_same, words=words, error=error, original_error=most, parameter=name)


def _judged_rounded(
    found: dict[str, Tensor],
    reference: dict[str, Tensor],
    errors: dict[str, float],
    own: dict[str, float],
    moves: Moves,
) -> GradientProof:
    """Judge by the direction and the length of each parameter's gradient."""
    apart = {name: distances(found, reference, name) for name in own}
    bends = {name: max(1 - _LEAST_COSINE, min(moves("bend", name), _MOST_BENT)) for name in own}
    lengths = {name: max(_MOST_NORM, min(moves("length", name), _MOST_LONG)) for name in own}
    is_bent = any(apart[name]["bend"] > bends[name] for name in own)
    is_long = any(apart[name]["length"] > lengths[name] for name in own)
    bent = max(own, key=lambda name: apart[name]["bend"] / (bends[name] if is_bent else 1), default="")
    long = max(own, key=lambda name: apart[name]["length"] / (lengths[name] if is_long else 1), default="")
    cosine = 1 - apart[bent]["bend"] if bent else 1.0
    length = apart[long]["length"] if long else 0.0
    told = f"cosine {cosine:.4f} {'' if is_bent else 'at least '}({plain(bent)}), "
    told += f"{'norm off by' if is_long else 'norms within'} {percent(length, decimals=1)} ({plain(long)})"
    return GradientProof(
        is_same=not (is_bent or is_long),
        words=f"{'other' if is_bent or is_long else 'same'} gradients, rounded: {told}",
        error=max(errors.values(), default=0.0),
        original_error=max(own.values(), default=0.0),
        cosine=cosine,
        norm_ratio=float(found[f"norm.{long}"] / reference[f"norm.{long}"]) if long else 1.0,
        parameter=plain(bent if is_bent or not is_long else long),
    )


def other_dropout(found: dict[str, Tensor], original: dict[str, Tensor]) -> str:
    """Return how gradients with dropout on differ from the original's from the same seed; "" where they are the same.

    Other masks change gradients by tens of percent, rounding by a millionth. All gradients are compared together.
    """
    if found.keys() != original.keys():
        return "with dropout on, other parameters have gradients"
    names = [name for name in original if not name.startswith("norm.")]
    apart, norm = (
        math.sqrt(sum(float(x.square().sum()) for x in tensors))
        for tensors in ([found[name] - original[name] for name in names], [original[name] for name in names])
    )
    if apart <= _MOST_OTHER_DROPOUT * norm:
        return ""
    share = percent(apart / max(norm, 1e-300), decimals=1)
    return f"dropout drops other numbers: with it, gradients differ by {share} from the original's"


def drops_something(model: nn.Module) -> bool:
    """Return whether a model has dropout layers that drop anything in training."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules())


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Let the model's dropout layers drop nothing: another dtype would draw other numbers."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate


def sample(gradient: Tensor) -> Tensor:
    """Return at most 65,536 numbers of a tensor, spread evenly, in float64 [n]."""
    flat = gradient.detach().reshape(-1)
    if len(flat) > _MOST_SAMPLED:
        flat = flat[torch.linspace(0, len(flat) - 1, _MOST_SAMPLED, dtype=torch.float64).long().to(flat.device)]
    return flat.double().cpu().clone()


def _is_finite(found: dict[str, Tensor], name: str) -> bool:
    return bool(torch.isfinite(found[name]).all()) and bool(torch.isfinite(found[f"norm.{name}"]).all())


def _error(found: Tensor, reference: Tensor) -> float:
    return float((found - reference).norm() / reference.norm().clamp_min(1e-300))


def _cosine(found: Tensor, reference: Tensor) -> float:
    norms = float(found.norm() * reference.norm())
    return float(found @ reference) / norms if norms else 0.0


def distances(found: dict[str, Tensor], reference: dict[str, Tensor], name: str) -> dict[str, float]:
    """Return the relative error of a gradient, 1 - cosine ("bend"), and the relative change of its norm ("length")."""
    if not float(found[f"norm.{name}"]) and not float(reference[f"norm.{name}"]):
        return {"error": 0.0, "bend": 0.0, "length": 0.0}
    return {
        "error": _error(found[name], reference[name]),
        "bend": 1 - _cosine(found[name], reference[name]),
        "length": abs(float(found[f"norm.{name}"] / reference[f"norm.{name}"]) - 1),
    }


def plain(name: str) -> str:
    """Return a parameter's name without the batch before it."""
    return name.partition(".")[2]
