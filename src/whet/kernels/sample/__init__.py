"""Sample tokens from logits with temperature, min-p, top-k, top-p and one uniform number per row: whet::sample.

reference.py defines the rule. Shape suffixes: R rows, V vocabulary.
"""

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.dispatch import as_floats, check_floats, kernels_for, pointer
from whet.kernels.sample.reference import sample_reference

UNUSABLE = -1  # in the place of a token where a row has NaN or +inf, or nothing above -inf
_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "uniform")


def choose_tokens(
    logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor, min_p_R: Tensor, uniform_R: Tensor
) -> Tensor:
    """Sample a token for each row. The same numbers give the same token whatever other rows the call has.

    Args:
        logits_RV: The logits, of a floating type.
        temperature_R: float32, at least 0.
        top_k_R: int32; 0 keeps all tokens.
        top_p_R: float32 from 0 to 1.
        min_p_R: float32 from 0 to 1.
        uniform_R: Random numbers, float32 of [0, 1).

    Returns:
        The tokens, int64 [R]. A row without a usable token has UNUSABLE.

    Raises:
        InputsError: Shapes or types do not fit.
    """
    columns = (temperature_R, top_k_R, top_p_R, min_p_R, uniform_R)
    _check(logits_RV, columns)
    logits_RV = as_floats(logits_RV)
    library = kernels_for(logits_RV, *columns)
    if library is None:
        return sample_reference(logits_RV, *columns)
    R, V = logits_RV.shape
    ids_R = torch.empty(R, dtype=torch.int64)
    library.functions.whet_sample(pointer(logits_RV), R, V, *map(pointer, columns), None, 0, None, pointer(ids_R))
    return ids_R


# The server calls the function itself: a custom op costs 10 us a call, and seconds at the first one.
sample = torch.library.custom_op("whet::sample", choose_tokens, mutates_args=())


@sample.register_fake
def _(
    logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor, min_p_R: Tensor, uniform_R: Tensor
) -> Tensor:
    return logits_RV.new_empty(logits_RV.shape[0], dtype=torch.int64)


def _check(logits_RV: Tensor, columns: tuple[Tensor, ...]) -> None:
    check_floats(logits_RV)
    if logits_RV.dim() != 2:
        raise InputsError(f"logits are [rows, vocabulary], not {list(logits_RV.shape)}")
    R = logits_RV.shape[0]
    for name, column in zip(_COLUMNS, columns, strict=True):
        dtype = torch.int32 if name == "top_k" else torch.float32
        if column.dtype is not dtype or column.dim() != 1 or column.numel() != R or not column.is_contiguous():
            raise InputsError(
                f"{name} of {R} rows is {dtype} [{R}], contiguous, "
                f"not {column.dtype} {list(column.shape)} with strides {list(column.stride())}"
            )
