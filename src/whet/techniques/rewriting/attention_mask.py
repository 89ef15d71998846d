"""Combine the masks between the product and the softmax of attention into the one mask of the fused operator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from whet.techniques.rewriting.graph import value

_aten = torch.ops.aten

# Added to a score, it leaves nothing of it. bfloat16 holds it, unlike the least number of float32.
_LOWEST = -1e30


@dataclass(frozen=True)
class Step:
    """Describe one operation on the scores between product and softmax.

    Attributes:
        kind: "scale" (by a number or a node), "add" (a mask), "fill" (replace scores under a condition), "keep" (keep
            scores under a condition), "split" (into batch and heads) or "merge".
        operand: What the operation takes: the factor, the mask, the condition, or batch and heads.
        reciprocal: Whether a scale divides.
        fill: The number that replaces scores.
    """

    kind: str
    operand: Any = None
    reciprocal: bool = False
    fill: float = -math.inf


def combined_mask(call: Any, steps: Sequence[Step], query: fx.Node, *, folded: bool) -> fx.Node | None:
    """Combine all masks: True where scores stay, or the numbers to add.

    Scores that are filled with a finite number are all equal in a row without any key, and softmax then takes the mean
    of all values. So such a fill becomes a number to add, one that absorbs every score.
    """
    mask: fx.Node | None = None
    is_bool = all(math.isinf(step.fill) for step in steps if step.kind in ("fill", "keep"))
    shape = value(query)
    dtype = torch.float32 if shape is None else shape.dtype
    lowest = max(_LOWEST, torch.finfo(dtype).min)
    for step in steps:
        if step.kind not in ("add", "fill", "keep"):
            continue
        operand = step.operand
        shape = value(operand)
        if shape is not None and shape.dim() == 3:
            operand = call(_aten.unsqueeze.default, operand, 1 if folded else 0)
        if step.kind == "add":
            if mask is not None:
                dropped = call(_aten.logical_not.default, mask) if is_bool else None
                operand = (
                    call(_aten.masked_fill.Scalar, operand, dropped, -math.inf)
                    if dropped is not None
                    else call(_aten.add.Tensor, mask, operand)
                )
            mask, is_bool = operand, False
        elif is_bool:
            kept = operand if step.kind == "keep" else call(_aten.logical_not.default, operand)
            mask = kept if mask is None else call(_aten.logical_and.default, mask, kept)
        else:
            dropped = operand if step.kind == "fill" else call(_aten.logical_not.default, operand)
            if mask is None:
                mask = call(_aten.zeros_like.default, dropped, dtype=dtype)
            mask = call(_aten.masked_fill.Scalar, mask, dropped, step.fill if math.isinf(step.fill) else lowest)
    return mask
