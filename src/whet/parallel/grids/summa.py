"""Multiply matrices that lie in blocks on a square of processes, with the blocks of one row or column in turn (SUMMA).

The process in row i and column j of a square of q x q holds the blocks X_ij, W_ij and Y_ij of Y = X W. In step t of q,
row i receives X_it and column j receives W_tj; each process adds their product to Y_ij. The gradients go the same way:
dX_it is the sum of dY_ij W_tj^T over row i, and dW_tj that of X_it^T dY_ij over column j. Only the process's own blocks
are kept for backward, which receives those of others again.

Source: van de Geijn and Watts, 1997, "SUMMA: scalable universal matrix multiplication algorithm"; for layers with their
gradients, Xu et al., 2021, arXiv:2104.05343.

Shape suffixes: M, K, N the sizes of a block: rows, input features, output features. W lies as nn.Linear's does, [N, K].
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

Group = distributed.ProcessGroup


@dataclass(frozen=True)
class Square:
    """Hold the groups of a process.

    Attributes:
        row: The processes of its row, which hold blocks of the same rows of X.
        column: The processes of its column, which hold the same output features of W.
        weight_copies: Groups whose processes hold the same block of W, and other rows of X.
        bias_copies: Groups whose processes hold the same part of b, and other rows of X.
    """

    row: Group
    column: Group
    weight_copies: Sequence[Group]
    bias_copies: Sequence[Group]


def summa(x_MK: Tensor, w_NK: Tensor, b_N: Tensor | None, square: Square) -> Tensor:
    """Return the block [M, N] of Y; all processes of the square must call it, and go backward, in the same order."""
    found: Tensor = _Summa.apply(x_MK, w_NK, b_N, square)  # type: ignore[no-untyped-call]
    return found


class _Summa(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, b_N: Tensor | None, square: Square) -> Tensor:
        needs_x, needs_w, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x_MK if needs_w else None, w_NK if needs_x else None)
        ctx.square = square
        y_MN = x_MK.new_zeros(len(x_MK), len(w_NK))
        if b_N is not None:
            y_MN += b_N
        for x, w in zip(_in_turn(x_MK, square.row), _in_turn(w_NK, square.column), strict=True):
            y_MN.addmm_(x, w.T)
        return y_MN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        [dy_MN], square = outer, ctx.square
        x_MK, w_NK = ctx.saved_tensors
        dx_MK = dw_NK = db_N = None
        if w_NK is not None:
            dx_MK = _summed_in_turn((dy_MN @ w for w in _in_turn(w_NK, square.column)), square.row)
        if x_MK is not None:
            dw_NK = _summed_in_turn((dy_MN.T @ x for x in _in_turn(x_MK, square.row)), square.column)
            for group in square.weight_copies:
                distributed.all_reduce(dw_NK, group=group)
        if ctx.needs_input_grad[2]:
            db_N = dy_MN.sum(0)
            for group in square.bias_copies:
                distributed.all_reduce(db_N, group=group)
        return dx_MK, dw_NK, db_N, None


def _in_turn(block: Tensor, group: Group) -> Iterator[Tensor]:
    """Yield the block of each process of a group in turn; the next one is on its way while one is used."""
    own, block = group.rank(), block.detach().contiguous()

    def sent(turn: int) -> tuple[Tensor, Any]:
        panel = block if turn == own else torch.empty_like(block)
        return panel, distributed.broadcast(panel, group_src=turn, group=group, async_op=True)

    coming = sent(0)
    for turn in range(1, group.size() + 1):
        panel, work = coming
        if turn < group.size():
            coming = sent(turn)
        work.wait()
        yield panel


def _summed_in_turn(parts: Iterable[Tensor], group: Group) -> Tensor:
    """Return the sum of the group's parts with this process's number; one is summed while the next is computed."""
    own, kept, pending = group.rank(), None, None
    for turn, part in enumerate(parts):
        part = part.contiguous()
        if pending is not None:
            pending.wait()
        pending = distributed.reduce(part, group_dst=turn, group=group, async_op=True)
        kept = part if turn == own else kept
    assert pending is not None and kept is not None
    pending.wait()
    return kept
