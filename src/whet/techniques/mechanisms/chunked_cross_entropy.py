"""Compute the cross-entropy of a linear layer's outputs chunk by chunk, with the gradients, without the whole logits.

Each chunk of rows is multiplied by the weight, its loss is taken in float32, and whet's kernel overwrites its logits
with their gradient, which gives the gradients of input, weight and bias at once. Backward only scales them. The idea is
that of Liger Kernel (Hsu et al., 2024, arXiv:2410.10989).

Three products of 2 N D V operations each are the limit. On top of them, each chunk moves its logits, reads the weight
twice, and reads and writes the weight's gradient, whose sum is kept in float32. So chunks are long, and the product for
the weight's gradient is added to the sum in tiles that stay in cache.

Shape suffixes: N rows, C rows of a chunk, D width, V vocabulary, T columns of a tile.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whet.kernels.cross_entropy import add_, write_gradients_

_CHUNK_BYTES = 32 * 2**20  # of logits, which every chunk may take
_COLUMN_BYTES = 2048  # of a chunk's logits, for one column: more rows make moving dW no cheaper beside the products
_TILE_BYTES = 8 * 2**20  # of a product for the weight's gradient


class _Rule(NamedTuple):
    """Hold how the loss is computed. See `chunked_cross_entropy`."""

    dtype: torch.dtype
    smoothing: float
    scale: float


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Compute the scaled sum of the cross-entropies of x W^T + b."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, column_N: Tensor, rule: _Rule
    ) -> Tensor:
        ctx.rule = rule
        ctx.save_for_backward(x_ND, weight_VD, bias_V, column_N)
        total, ctx.gradients = _loss_and_gradients(x_ND, weight_VD, bias_V, column_N, rule, ctx.needs_input_grad[:3])
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        # The gradients are handed over, not copied. Whoever goes backward twice has them computed again.
        gradients: _Gradients | None = ctx.gradients
        ctx.gradients = None
        if gradients is None:
            x_ND, weight_VD, bias_V, column_N = ctx.saved_tensors
            _, gradients = _loss_and_gradients(x_ND, weight_VD, bias_V, column_N, ctx.rule, ctx.needs_input_grad[:3])
        scale: Tensor = outer[0]
        if scale.device.type != "cpu" or float(scale) != 1.0:  # elsewhere, looking at it would wait for the device
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(scale.to(gradient.dtype))
        return (*gradients, None, None)


def _loss_and_gradients(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    column_N: Tensor,
    rule: _Rule,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor, _Gradients]:
    with torch.no_grad(), torch.autocast(x_ND.device.type, enabled=False):
        low_VD = weight_VD.to(rule.dtype)
        low_bias_V = None if bias_V is None else bias_V.to(rule.dtype)
        dx_ND = torch.empty_like(x_ND, memory_format=torch.contiguous_format) if needs[0] else None
        dw_VD = (
            torch.empty_like(weight_VD, dtype=_wide(weight_VD), memory_format=torch.contiguous_format)
            if needs[1]
            else None
        )
        db_V = torch.zeros_like(bias_V, dtype=_wide(bias_V)) if needs[2] and bias_V is not None else None
        loss_N = x_ND.new_zeros(len(x_ND), dtype=torch.promote_types(rule.dtype, torch.float32))
        size = rows_of_a_chunk(len(x_ND), weight_VD.shape, rule.dtype)
        room_CV = x_ND.new_empty((min(size, len(x_ND)), len(weight_VD)), dtype=rule.dtype)
        for begin in range(0, len(x_ND), size):
            rows = slice(begin, begin + size)
            x_CD = x_ND[rows].to(rule.dtype)
            logits_CV = _product(x_CD, low_VD, low_bias_V, room_CV[: len(x_CD)])
            loss_N[rows] = write_gradients_(logits_CV, column_N[rows], rule.smoothing, rule.scale)
            if dx_ND is not None:
                dx_ND[rows] = logits_CV @ low_VD
            if dw_VD is not None:
                _add_product(dw_VD, logits_CV, x_CD, is_first=begin == 0)
            if db_V is not None:
                db_V += logits_CV.sum(0, dtype=db_V.dtype)
        if dw_VD is not None and not len(x_ND):
            dw_VD.zero_()
        total = loss_N.sum() * rule.scale
        dw_VD = None if dw_VD is None else dw_VD.to(weight_VD.dtype)
        return total, (dx_ND, dw_VD, None if db_V is None or bias_V is None else db_V.to(bias_V.dtype))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _product(x_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, out_CV: Tensor) -> Tensor:
    if bias_V is None:
        return torch.mm(x_CD, weight_VD.T, out=out_CV)
    return torch.addmm(bias_V, x_CD, weight_VD.T, out=out_CV)


def _add_product(dw_VD: Tensor, gradient_CV: Tensor, x_CD: Tensor, *, is_first: bool) -> None:
    """Add the gradient's product with x to the sum for the weight, or begin the sum with it."""
    if dw_VD.dtype is x_CD.dtype:
        torch.addmm(dw_VD, gradient_CV.T, x_CD, beta=0 if is_first else 1, out=dw_VD)
        return
    V, D = dw_VD.shape
    is_cached = x_CD.device.type == "cpu"  # a GPU takes the whole product
    size = max(1, min(V, _TILE_BYTES // (D * x_CD.element_size()))) if is_cached else V
    room_TD = x_CD.new_empty((size, D))
    for begin in range(0, V, size):
        sum_TD = dw_VD[begin : begin + size]
        product_TD = torch.mm(gradient_CV[:, begin : begin + size].T, x_CD, out=room_TD[: len(sum_TD)])
        if is_first:
            sum_TD.copy_(product_TD)
        else:
            add_(sum_TD, product_TD)


def rows_of_a_chunk(num_rows: int, weight_shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the number of rows in a chunk. All chunks of a call are about as long.

    A chunk's logits, in `dtype`, take 32 MiB, or half as much as the gradient of the weight [V, D] in float32 if that
    is more, up to 1,024 rows of bfloat16 or 512 of float32.
    """
    V, D = weight_shape
    most = max(_CHUNK_BYTES // (V * dtype.itemsize), min(_COLUMN_BYTES, 2 * D) // dtype.itemsize, 1)
    num_chunks = max(1, -(-num_rows // most))
    return max(1, -(-num_rows // num_chunks))


def chunked_cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    *,
    ignore_index: int,
    dtype: torch.dtype,
    smoothing: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """Return the sum of the cross-entropies of the rows' logits x W^T + b, times a factor. It has gradients.

    Args:
        target_N: The right columns, int64.
        ignore_index: The target of rows that count nothing.
        dtype: The dtype of the products.
        smoothing: The share of a target that is spread over all columns, 0 to 1.
        scale: The factor, such as one over the number of rows for a mean.

    Raises:
        IndexError: A target is no column.
    """
    kept_N = target_N != ignore_index
    if target_N.device.type == "cpu" and bool((kept_N & (target_N < 0)).any()):
        raise IndexError(f"a target is negative, and not the one that is ignored ({ignore_index})")
    column_N = target_N.where(kept_N, -1)
    rule = _Rule(dtype, smoothing, scale)
    total: Tensor = _ChunkedCrossEntropy.apply(x_ND, weight_VD, bias_V, column_N, rule)  # type: ignore[no-untyped-call]
    return total
