"""Compute the cross-entropy of a linear layer's outputs chunk by chunk, with the gradients, without the whole logits.

Each chunk of rows is multiplied by the weight, its loss is taken in float32, and its logits are overwritten with their
gradient, which gives the gradients of input, weight and bias at once. Backward only scales them. The idea is that of
Liger Kernel (Hsu et al., 2024, arXiv:2410.10989).

Shape suffixes: N rows, C rows of a chunk, D width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK_BYTES = 32 * 2**20  # of logits: a chunk should stay in the last level of cache, and be long enough for a product


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Compute the sum of the cross-entropies of x W^T + b."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        ignore_index: int,
        dtype: torch.dtype,
    ) -> Tensor:
        low_VD = weight_VD.to(dtype)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dx_ND = torch.empty_like(x_ND) if needs_x else None
        dw_VD = (
            torch.zeros_like(weight_VD, dtype=torch.promote_types(weight_VD.dtype, torch.float32))
            if needs_weight
            else None
        )
        db_V = torch.zeros_like(bias_V) if needs_bias and bias_V is not None else None
        total = x_ND.new_zeros((), dtype=torch.promote_types(dtype, torch.float32))
        size = max(1, _CHUNK_BYTES // (len(weight_VD) * dtype.itemsize))
        for begin in range(0, len(x_ND), size):
            rows = slice(begin, begin + size)
            x_CD, target_C = x_ND[rows].to(dtype), target_N[rows]
            logits_CV = x_CD @ low_VD.T
            if bias_V is not None:
                logits_CV += bias_V.to(dtype)
            total += cross_entropy_and_gradient_(logits_CV, target_C, ignore_index)
            if dx_ND is not None:
                dx_ND[rows] = logits_CV @ low_VD
            if dw_VD is not None:
                dw_VD += logits_CV.T @ x_CD
            if db_V is not None:
                db_V += logits_CV.sum(0)
        ctx.save_for_backward(dx_ND, None if dw_VD is None else dw_VD.to(weight_VD.dtype), db_V)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        scale = gradients[0]
        scaled = (None if saved is None else saved * scale.to(saved.dtype) for saved in ctx.saved_tensors)
        return (*scaled, None, None, None)


def cross_entropy_and_gradient_(logits_CV: Tensor, target_C: Tensor, ignore_index: int) -> Tensor:
    """Return the sum of the cross-entropies, and overwrite the logits with the gradient of that sum.

    Args:
        logits_CV: The logits, in any floating-point dtype. The loss is computed in float32 or better.
        target_C: The right columns, int64. Rows whose target is `ignore_index` count nothing.
        ignore_index: See target_C.
    """
    wide = torch.promote_types(logits_CV.dtype, torch.float32)
    kept_C1 = (target_C != ignore_index)[:, None]
    column_C1 = target_C[:, None].where(kept_C1, 0)
    logp_CV = torch.log_softmax(logits_CV.to(wide), dim=-1)
    loss = -logp_CV.gather(1, column_C1).where(kept_C1, 0).sum()
    gradient_CV = logp_CV.exp_()
    gradient_CV.scatter_add_(1, column_C1, torch.full_like(column_C1, -1, dtype=wide))
    gradient_CV *= kept_C1
    logits_CV.copy_(gradient_CV)
    return loss


def chunked_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_N: Tensor, *, ignore_index: int, dtype: torch.dtype
) -> Tensor:
    """Return the sum of the cross-entropies of the rows' logits x W^T + b, which has gradients.

    Args:
        x_ND: The inputs of the last layer.
        weight_VD: Its weight.
        bias_V: Its bias, or None.
        target_N: The right columns, int64.
        ignore_index: The target of rows that count nothing.
        dtype: The dtype of the products.
    """
    total: Tensor = _ChunkedCrossEntropy.apply(x_ND, weight_VD, bias_V, target_N, ignore_index, dtype)  # type: ignore[no-untyped-call]
    return total
