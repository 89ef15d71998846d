"""Compute the last layer and the cross-entropy together, chunk by chunk: the whole logits are never in memory.

What            The last layer returns a promise of its logits. Where the loop takes their cross-entropy, the products,
                the loss and the gradients are computed for a few hundred rows at a time. whet's kernel (C++, or Triton
                on a GPU) takes a chunk's loss and writes its gradient in the place of its logits.
When it helps   Language models: the logits of a batch take tokens x vocabulary numbers, several times over. Mean, sum,
                ignored targets and label smoothing are computed so.
When it hurts   Small vocabularies. A loop that looks at the logits in training, weighs classes, or takes the loss of
                each token by itself computes the logits after all.
Numerics        The loss in float32; sums over chunks in another order: 1e-6 relative.
Composes        With everything. torch.compile compiles the model up to the last layer.
Source          Hsu et al., 2024, arXiv:2410.10989 (Liger Kernel); Wijmans et al., 2024, arXiv:2411.09009.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from whet.measure.machine import Machine
from whet.techniques.mechanisms.blocks import head_of
from whet.techniques.mechanisms.deferred_logits import DeferredLogits
from whet.techniques.mechanisms.module_class import AddedForward, extend
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


class _Deferred(AddedForward):
    """Return a promise of the logits while the model trains."""

    is_eager = True

    def forward(self: Any, x: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(x)  # type: ignore[misc,no-any-return]
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return DeferredLogits(x, self.weight, self.bias, x.dtype, x.dtype)
        # The loss is float32 whatever the products are. Shown as float32, the promise needs no cast on its way there.
        return DeferredLogits(x, self.weight, self.bias, torch.float32, torch.get_autocast_dtype(kind))


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    head = head_of(parts.model)
    if head is None:
        return NotApplicable("the model does not end in a linear layer with 1,024 outputs or more")
    if isinstance(head, FSDPModule):
        return NotApplicable(
            "fully_shard frees the last layer's weight before the loss: shard that layer with the rest"
        )
    return Applies(f"a vocabulary of {head.out_features}")


def apply(parts: Parts, options: NoOptions) -> Parts:
    head = head_of(parts.model)
    assert head is not None
    extend(head, _Deferred)
    return parts


TECHNIQUE = TrainingTechnique(
    name="chunked_loss",
    stage=TrainingStage.STRUCTURE,
    order=10,
    card=__doc__,
    exactness=Exactness.EXACT,
    check=check,
    predict=lambda profile, limits, options: profile.bound(loss_s=0.0),
    apply=apply,
    keeps_dropout=True,
    predict_memory=lambda memory, options: memory.left(other=0.3),  # the logits may be most of the activations
)
