"""Compute cross-entropy and its gradient on a GPU, in Triton. Needs triton, which torch brings along for CUDA.

One program takes one row: it reads the row once for the sum of exponentials, which it scales whenever it meets a larger
logit, and once more to write the gradients. Shape suffixes: C rows of a chunk, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # logits of a row that a program holds at once
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _row(logits, target, loss, num_columns, smoothing, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the loss of one row, and its gradient in the place of its logits."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_columns
    wanted = tl.load(target + row)
    lanes = tl.arange(0, BLOCK)
    if wanted < 0:
        for begin in range(0, num_columns, BLOCK):
            place = begin + lanes
            tl.store(logits + place, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=place < num_columns)
        tl.store(loss + row, 0.0)
        return
    at_target = tl.load(logits + wanted, mask=wanted < num_columns, other=float("nan")).to(tl.float32)
    largest = float("-inf")
    total_exp = 0.0
    total = 0.0
    for begin in range(0, num_columns, BLOCK):
        place = begin + lanes
        x = tl.load(logits + place, mask=place < num_columns, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(x, 0))
        base = tl.where(larger == float("-inf"), 0.0, larger)  # else a row that begins with -inf would be NaN
        total_exp = total_exp * tl.exp(largest - base) + tl.sum(tl.exp(x - base), 0)
        total += tl.sum(tl.where(place < num_columns, x, 0.0), 0)
        largest = larger
    log_sum = tl.log(total_exp)  # of exp(x - largest); added last, since it is lost beside logits that are far from 0
    found = (1.0 - smoothing) * (largest - at_target + log_sum)
    if smoothing > 0:
        found += smoothing * (largest - total / num_columns + log_sum)
    tl.store(loss + row, found)
    tl.debug_barrier()  # every thread has read the target's logit before one of them writes there
    spread = smoothing / num_columns
    for begin in range(0, num_columns, BLOCK):
        place = begin + lanes
        x = tl.load(logits + place, mask=place < num_columns, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(x - largest) / total_exp - spread - tl.where(place == wanted, 1.0 - smoothing, 0.0)
        tl.store(logits + place, (gradient * scale).to(logits.dtype.element_ty), mask=place < num_columns)


def cross_entropy_in_triton_(logits_CV: Tensor, target_C: Tensor, smoothing: float, scale: float) -> Tensor:
    """Return the loss of each row in float32, and overwrite the logits with the gradients, as `write_gradients_` does.

    A target that is no column gives a loss of NaN: raising would wait for the GPU.
    """
    C, V = logits_CV.shape
    loss_C = torch.empty(C, dtype=torch.float32, device=logits_CV.device)
    if C:
        block = min(_BLOCK, triton.next_power_of_2(V))
        _row[(C,)](logits_CV, target_C, loss_C, V, float(smoothing), float(scale), BLOCK=block, num_warps=_WARPS)
    return loss_C
