"""Compute cross-entropy and its gradient in torch, as the reference, and for what the kernels do not take.

Shape suffixes: C rows of a chunk, V vocabulary.
"""

import torch
from torch import Tensor


def cross_entropy_reference_(logits_CV: Tensor, target_C: Tensor, smoothing: float, scale: float) -> Tensor:
    """Return the loss of each row, [C] in float32 or float64, and overwrite the logits with the gradients."""
    wide = torch.promote_types(logits_CV.dtype, torch.float32)
    kept_C1 = (target_C >= 0)[:, None]
    column_C1 = target_C[:, None].clamp(min=0)
    logp_CV = torch.log_softmax(logits_CV.to(wide), dim=-1)
    loss_C1 = (smoothing - 1) * logp_CV.gather(1, column_C1)
    spread = smoothing / logits_CV.shape[1]
    if smoothing:
        loss_C1 -= smoothing * logp_CV.mean(dim=1, keepdim=True)
    gradient_CV = logp_CV.exp_()
    if smoothing:
        gradient_CV -= spread
    gradient_CV.scatter_add_(1, column_C1, torch.full_like(column_C1, smoothing - 1, dtype=wide))
    logits_CV.copy_((gradient_CV.mul_(scale)).masked_fill_(~kept_C1, 0))
    return loss_C1.masked_fill_(~kept_C1, 0)[:, 0]
