"""Compute cross-entropy together with its gradient, in the place of the logits: whet::cross_entropy_.

A training step needs both, and needs the logits for nothing else. reference.py defines the numbers. Shape suffixes:
C rows of a chunk, V vocabulary, D width.
"""

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.cross_entropy.reference import cross_entropy_reference_
from whet.kernels.dispatch import kernels_for, pointer, triton_for

_KINDS = (torch.float32, torch.bfloat16)  # of the kernels; others run in torch


def write_gradients_(logits_CV: Tensor, target_C: Tensor, smoothing: float = 0.0, scale: float = 1.0) -> Tensor:
    """Return the cross-entropy of each row, and overwrite the logits with the gradients of these losses.

    Args:
        logits_CV: The logits, of a floating type, contiguous. Losses are computed in float32, those of float64 logits
            in float64.
        target_C: The right columns, int64. A row with a negative one counts nothing: its loss and gradient are 0.
        smoothing: The share of a target that is spread over all columns, 0 to 1.
        scale: A factor of the gradients; the losses have none.

    Returns:
        The losses [C]. A row with NaN or +inf has a loss and gradients of NaN.

    Raises:
        InputsError: Shapes or types do not fit.
        IndexError: A target is no column. On a GPU, its loss is NaN instead.
    """
    _check(logits_CV, target_C)
    C, V = logits_CV.shape
    if C and target_C.device.type == "cpu" and int(target_C.max()) >= V:
        raise IndexError(f"target {int(target_C.max())} is out of bounds for {V} columns")
    if triton_for(logits_CV, target_C):
        from whet.kernels.cross_entropy.cuda import cross_entropy_in_triton_

        return cross_entropy_in_triton_(logits_CV, target_C, smoothing, scale)
    library = kernels_for(logits_CV, target_C) if logits_CV.dtype in _KINDS else None
    if library is None:
        return cross_entropy_reference_(logits_CV, target_C, smoothing, scale)
    loss_C = torch.empty(C)
    is_bf16 = logits_CV.dtype is torch.bfloat16
    library.functions.whet_cross_entropy(
        pointer(logits_CV), is_bf16, C, V, pointer(target_C), smoothing, scale, pointer(loss_C)
    )
    return loss_C


# Training calls the function itself: a custom op costs 10 us a call, and seconds at the first one.
cross_entropy_ = torch.library.custom_op("whet::cross_entropy_", write_gradients_, mutates_args=("logits_CV",))


@cross_entropy_.register_fake
def _(logits_CV: Tensor, target_C: Tensor, smoothing: float = 0.0, scale: float = 1.0) -> Tensor:
    return logits_CV.new_empty(logits_CV.shape[0], dtype=torch.promote_types(logits_CV.dtype, torch.float32))


def add_(sum_VD: Tensor, x_VD: Tensor) -> None:
    """Add a matrix to one of a wider type in one pass; PyTorch would first convert the narrow one, into a copy."""
    is_narrow = sum_VD.dtype is torch.float32 and x_VD.dtype is torch.bfloat16 and sum_VD.device.type == "cpu"
    is_plain = sum_VD.is_contiguous() and x_VD.is_contiguous() and sum_VD.shape == x_VD.shape and x_VD.dim() == 2
    library = kernels_for(sum_VD, x_VD) if is_narrow and is_plain else None
    if library is None:
        sum_VD += x_VD
    else:
        library.functions.whet_add_bf16(pointer(sum_VD), pointer(x_VD), *x_VD.shape)


def _check(logits_CV: Tensor, target_C: Tensor) -> None:
    if logits_CV.dim() != 2 or not logits_CV.is_floating_point() or not logits_CV.is_contiguous():
        raise InputsError(
            f"logits are contiguous rows of a floating type, [rows, vocabulary], not {logits_CV.dtype} "
            f"{list(logits_CV.shape)} with strides {list(logits_CV.stride())}"
        )
    C, V = logits_CV.shape
    if target_C.dtype is not torch.int64 or target_C.shape != (C,) or not target_C.is_contiguous() or V == 0:
        raise InputsError(
            f"targets of {C} rows of {V} columns are int64 [{C}], contiguous, "
            f"not {target_C.dtype} {list(target_C.shape)}"
        )
