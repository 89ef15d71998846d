"""Say what a workload's batches do not show, and so is neither calibrated nor judged."""

import inspect
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from whet.core.workload.examination import ExaminedWorkload


def unseen_inputs(examined: ExaminedWorkload) -> tuple[str, ...]:
    """Return hints in words, one for each kind of input that the workload's batches lack.

    A mask that keeps every place in every batch shows nothing of padding: a variant that ignores the mask agrees.
    """
    names, batches = _names(examined), examined.flat_calibration
    masks = [
        name or f"input {i}"
        for i, name in enumerate(names)
        if len(names) > 1 and _is_open_mask(name, [batch[i] for batch in batches])
    ]
    return tuple(
        f"{name} keeps every place in every batch, so padding is neither calibrated nor judged: where the model will "
        "see padded inputs, give calibration batches (Workload(calibration=...)) in which this mask hides some places"
        for name in masks
    )


def _names(examined: ExaminedWorkload) -> list[str]:
    """Return the name of each input; that of the parameter where it is given by position, "" where none is known."""
    signature = examined.signature
    is_plain = len(signature.args) == sum(argument.name is None for argument in signature.inputs)
    known = list(inspect.signature(examined.workload.model.forward).parameters) if is_plain else []
    given = itertools.chain(known[: len(signature.args)], itertools.repeat(""))
    return [next(given) if argument.name is None else argument.name for argument in signature.inputs]


def _is_open_mask(name: str, tensors: Sequence[Tensor]) -> bool:
    """Return whether an input is a mask that hides nothing.

    Ones in whole numbers or booleans are a mask under any name. Floats are one if they are named so: ones that
    multiply, or zeros that are added to scores. A mask of booleans that is named so may also hide where it is True.
    """
    if not all(x.dim() > 1 and x.numel() > 1 for x in tensors):
        return False
    is_named = "mask" in name.lower() or "pad" in name.lower()
    values = {value for x in tensors for value in _ends(x)}
    if values == {0.0}:
        return is_named and not any(x.dtype in (torch.int32, torch.int64) for x in tensors)
    return values == {1.0} and (is_named or not any(x.is_floating_point() for x in tensors))


def _ends(tensor: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    values = tensor.detach().float()
    return float(values.min()), float(values.max())
