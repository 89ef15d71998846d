"""Update the weights of hidden layers with Muon in place of AdamW.

What            Muon makes each update of a matrix orthogonal, in five matrix products in bfloat16. Embeddings, the last
                layer, biases and norms stay with AdamW. torch.optim.Muon, scaled so that the learning rate and the
                decay of AdamW go on to hold.
When it helps   The optimiser's state takes much of the memory: one number a weight in place of two. Many models also
                need fewer steps.
When it hurts   Small batches: its products cost as much as a few hundred rows of forward and backward do.
Numerics        Another algorithm: only the held-out loss can tell.
Composes        Alone in its group (optimizer); with everything else.
Source          Jordan et al., 2024, https://kellerjordan.github.io/posts/muon; Liu et al., 2025, arXiv:2502.16982;
                PyTorch documentation, torch.optim.Muon.
"""

from dataclasses import replace

import torch
from torch import nn

from whet.measure.machine import Machine
from whet.techniques.mechanisms.blocks import head_of
from whet.techniques.mechanisms.muon import MuonWithAdamW
from whet.techniques.mechanisms.optimizers import OPTIMIZER, replaced, why_not_replaced
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    """Check that the optimiser is AdamW and trains hidden layers, and that the device multiplies bfloat16."""
    if not hasattr(torch.optim, "Muon"):
        return NotApplicable("this PyTorch has no torch.optim.Muon")
    if reason := why_not_replaced(parts.optimizer, torch.optim.AdamW):
        return NotApplicable(reason)
    if any(group[name] for group in parts.optimizer.param_groups for name in ("amsgrad", "maximize")):
        return NotApplicable("the optimiser's amsgrad or maximize has no counterpart in Muon")
    if not machine.computes_bfloat16(parts.device_type):
        return NotApplicable("the processor does not multiply bfloat16, in which Muon computes its updates")
    matrices = _matrices(parts)
    if not matrices:
        return NotApplicable("the optimiser trains no weight of a hidden linear layer")
    return Applies(f"{len(matrices)} matrices")


def _matrices(parts: Parts) -> list[nn.Parameter]:
    """Return the weights of linear layers that the optimiser trains, without embeddings and the last layer."""
    layers = [module for module in parts.model.modules() if isinstance(module, nn.Linear)]
    embeddings = [m.weight for m in parts.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    head = head_of(parts.model, least_outputs=1) or (layers[-1] if layers else None)
    left_out = {id(p) for p in embeddings} | ({id(head.weight)} if head is not None else set())
    trained = {id(p) for group in parts.optimizer.param_groups for p in group["params"] if p.requires_grad}
    found = {id(layer.weight): layer.weight for layer in layers}
    chosen = [p for key, p in found.items() if key in trained and key not in left_out and p.ndim == 2]
    return [p for p in chosen if isinstance(p, nn.Parameter)]


def apply(parts: Parts, options: NoOptions) -> Parts:
    matrices = _matrices(parts)
    names = frozenset({"lr", "betas", "eps", "weight_decay"})
    made = replaced(parts.optimizer, lambda groups: MuonWithAdamW(groups, matrices), names)
    return replace(parts, optimizer=made)


TECHNIQUE = TrainingTechnique(
    name="muon",
    stage=TrainingStage.OPTIMIZER,
    order=40,
    card=__doc__,
    exactness=Exactness.OTHER,
    check=check,
    # parameters, gradients and one moment are moved
    predict=lambda profile, limits, options: profile.bound(
        optimizer_s=profile.least_optimizer_s(limits, bytes_per_parameter=20.0)
    ),
    apply=apply,
    keeps_dropout=True,
    groups=frozenset({OPTIMIZER}),
    predict_memory=lambda memory, options: memory.left(optimizer=0.5),  # there is one moment in the place of two
)
