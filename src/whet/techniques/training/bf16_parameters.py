"""Keep weights and gradients in bfloat16, and update them in float32.

What            Matrices and filters become bfloat16, with their gradients. Biases, norms and the rates of scans stay
                float32. The optimiser updates float32 copies (update="masters"), or float32 values that are rounded up
                or down by chance ("stochastic"). Forward runs inside autocast, which then casts no weights, and returns
                float32.
When it helps   Where autocast helps; activations between blocks are bfloat16 too, and no weight is cast in a step.
When it hurts   With masters, weights, gradients and copies take as much memory as before; without, the rounding of each
                update is noise. Sums of gradients over many batches are rounded to 8 bits.
Numerics        As autocast, and gradients are rounded. Checkpoints, copies and pickles hold float32: the masters, or
                what the bfloat16 values are. The optimiser's state stays float32.
Composes        Alone in its group (precision). An optimiser that it works with must update each parameter by itself,
                and count nothing in its groups.
Source          Micikevicius et al., 2017, arXiv:1710.03740 (masters); Zamirai et al., 2020, arXiv:2010.06192
                (stochastic rounding).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from whet.core.workload.plain_parameters import plain_parameters
from whet.measure.machine import Machine
from whet.techniques.costs.memory import StepMemory
from whet.techniques.mechanisms.autocast_forward import AutocastForward
from whet.techniques.mechanisms.master_weights import keep_in_bfloat16
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.optimizers import WHOLE_GROUPS, updates_one_by_one
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import EXCHANGES, EXCHANGES_SHARDS, Use
from whet.techniques.technique import PRECISION, Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"update": ("masters", "stochastic")}
_LEFT_ALONE = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear)  # their operators take no mixture of dtypes inside autocast


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of bf16_parameters.

    Attributes:
        update: "masters" keeps a float32 copy of each such parameter; "stochastic" rounds each update by chance.
    """

    update: str = "masters"


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that there are float32 matrices that an optimiser of PyTorch updates one by one."""
    if options.update not in _SPACE["update"]:
        return NotApplicable(f"update must be masters or stochastic, not {options.update!r}")
    if not machine.computes_bfloat16(parts.device_type):
        return NotApplicable("the processor does not multiply bfloat16: it would emulate it")
    if reason := updates_one_by_one(parts.optimizer):
        return NotApplicable(reason)
    if any(is_parametrized(module) for module in parts.model.modules()):
        return NotApplicable("some weights are computed from others (torch.nn.utils.parametrize)")
    if any(getattr(module, "sparse", False) for module in parts.model.modules() if isinstance(module, nn.Embedding)):
        return NotApplicable("an embedding has sparse gradients")
    chosen = _chosen(parts)
    if not chosen:
        return NotApplicable("the optimiser trains no float32 matrix of the model")
    return Applies(f"{sum(p.numel() for p in chosen):,} parameters in bfloat16")


def _chosen(parts: Parts) -> list[nn.Parameter]:
    """Return the matrices and filters in float32 that the optimiser trains."""
    kept = {id(p) for m in parts.model.modules() if isinstance(m, _LEFT_ALONE) for p in m.parameters(recurse=False)}
    kept |= plain_parameters(parts.model)
    trained = {id(p) for group in parts.optimizer.param_groups for p in group["params"]}
    return [
        p
        for p in parts.model.parameters()
        if id(p) in trained
        and id(p) not in kept
        and p.requires_grad
        and p.dim() >= 2
        and p.dtype is torch.float32
        and type(p) is nn.Parameter
    ]


def predict_memory(memory: StepMemory, options: Options) -> float:
    """Return the least bytes of a step: half of everything but the optimiser's state, and float32 copies, if any."""
    parameters = 0.5 if options.update == "stochastic" else 1.5
    return memory.left(parameters=parameters, gradients=0.5, other=0.5)


def apply(parts: Parts, options: Options) -> Parts:
    keep_in_bfloat16(parts.model, parts.optimizer, _chosen(parts), by_chance=options.update == "stochastic")
    extend(parts.model, AutocastForward)
    return parts


def exactness_of(options: Options) -> Exactness:
    """Return OTHER for stochastic rounding, whose updates only the loss can judge."""
    return Exactness.OTHER if options.update == "stochastic" else Exactness.ROUNDED


TECHNIQUE = TrainingTechnique(
    name="bf16_parameters",
    stage=TrainingStage.OPTIMIZER,  # after whatever replaces the optimiser, so that no update goes past the masters
    order=80,
    card=__doc__,
    options=Options,
    exactness=Exactness.ROUNDED,
    exactness_of=exactness_of,
    check=check,
    predict=lambda profile, limits, options: profile.bound_in_fewer_bits(profile.share_left(limits, "bfloat16")),
    apply=apply,
    space=_SPACE,
    groups=frozenset({PRECISION, WHOLE_GROUPS}),
    predict_memory=predict_memory,
    refuses={Use.DDP: EXCHANGES, Use.FSDP2: EXCHANGES_SHARDS},
)
