"""Compute the losses of a distillation: of a teacher's outputs, and of its hidden states.

The loss of outputs is (1 - alpha) CE + alpha T^2 KL(teacher || student), both distributions being softmaxes of logits
over T (Hinton et al., 2015, arXiv:1503.02531). Hidden states are held against each other by the mean squared difference
(Jiao et al., 2020, arXiv:1909.10351). Ignored targets count in no term; each term is a mean over the others.

Shape suffixes: N targets, C targets of a chunk, V classes or vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whet.errors import OptionError, TargetError, type_name
from whet.techniques.mechanisms.packing.packing import IGNORED

_CHUNK_BYTES = 32 * 2**20  # of one model's logits in float32, of which a few copies are in memory at once


class Rule(NamedTuple):
    """Hold the temperature, and the weights of the cross-entropy (`hard`) and of the teacher's term (`soft`)."""

    hard: float
    soft: float
    temperature: float


class _Distilled(torch.autograd.Function):
    """Sum the loss over rows, chunk by chunk. The gradient of each chunk is computed at once, in the logits' dtype."""

    @staticmethod
    def forward(ctx: Any, student_NV: Tensor, teacher_NV: Tensor, target_N: Tensor, keep_N: Tensor, rule: Rule) -> Any:
        N, V = student_NV.shape
        wide = torch.promote_types(student_NV.dtype, torch.float32)
        gradient_NV = torch.empty_like(student_NV) if ctx.needs_input_grad[0] else None
        total = student_NV.new_zeros((), dtype=wide)
        size = max(1, _CHUNK_BYTES // (V * wide.itemsize))
        for begin in range(0, N, size):
            rows = slice(begin, begin + size)
            loss_C, gradient_CV = _chunk(
                student_NV[rows].to(wide), teacher_NV[rows].to(wide), target_N[rows].where(keep_N[rows], 0), rule
            )
            total += loss_C.where(keep_N[rows], 0).sum()
            if gradient_NV is not None:
                gradient_NV[rows] = gradient_CV.masked_fill_(~keep_N[rows, None], 0).to(gradient_NV.dtype)
        ctx.gradient = gradient_NV
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        gradient_NV, ctx.gradient = ctx.gradient, None
        if gradient_NV is None:
            raise RuntimeError("the loss of a distillation goes backward once; compute it again for a second time")
        return gradient_NV.mul_(outer[0].to(gradient_NV.dtype)), None, None, None, None


def _chunk(student_CV: Tensor, teacher_CV: Tensor, target_C: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its gradient for the student's logits."""
    T = rule.temperature
    loss_C = student_CV.new_zeros(len(student_CV))
    gradient_CV = torch.zeros_like(student_CV)
    if rule.soft:
        log_s_CV = torch.log_softmax(student_CV / T, -1)
        log_t_CV = torch.log_softmax(teacher_CV / T, -1)
        t_CV = log_t_CV.exp()
        terms_CV = t_CV * (log_t_CV - log_s_CV)
        loss_C += rule.soft * T**2 * terms_CV.where(t_CV > 0, 0).sum(-1)  # the limit of p log p is 0
        gradient_CV.add_(log_s_CV.exp_().sub_(t_CV), alpha=rule.soft * T)
    if rule.hard:
        log_s_CV = torch.log_softmax(student_CV, -1)
        at_target_C1 = target_C[:, None]
        loss_C -= rule.hard * log_s_CV.gather(-1, at_target_C1)[:, 0]
        gradient_CV.add_(log_s_CV.exp_(), alpha=rule.hard)
        gradient_CV.scatter_add_(-1, at_target_C1, gradient_CV.new_full(at_target_C1.shape, -rule.hard))
    return loss_C, gradient_CV


def distillation_loss(
    student: Tensor,
    teacher: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    alpha: float = 0.5,
    ignore_index: int = IGNORED,
) -> Tensor:
    """Return (1 - alpha) CE + alpha T^2 KL(teacher || student), the mean over the targets that are not ignored.

    It is computed in float32 or wider, chunk by chunk: beside the logits, their gradient alone has their size.

    Args:
        student: The student's logits, [N, V] or [B, V, ...], as torch.nn.functional.cross_entropy takes them.
        teacher: The teacher's logits, of the same shape. They get no gradient.
        target: The right classes, int64 [N] or [B, ...].
        temperature: T, what both logits are divided by.
        alpha: The weight of the teacher, from 0 to 1.
        ignore_index: The target of rows that count in no term.

    Returns:
        The loss; 0 where all targets are ignored.

    Raises:
        OptionError: temperature or alpha is out of its range.
        TargetError: The logits of both differ in shape.
    """
    check_numbers(temperature, alpha)
    check_shapes(student, teacher)
    return mean_loss(student, teacher, target, Rule(1 - alpha, alpha, temperature), target != ignore_index)


def mean_loss(student: Tensor, teacher: Tensor, target: Tensor, rule: Rule, keep: Tensor) -> Tensor:
    """Return the mean of the loss over the targets that are kept, of logits [N, V] or [B, V, ...] and their targets."""
    kept: Tensor = keep.flatten()
    rows = _rows(student), _rows(teacher).detach()
    total: Tensor = _Distilled.apply(*rows, target.flatten(), kept, rule)  # type: ignore[no-untyped-call]
    return total / kept.sum().clamp(min=1)


def _rows(logits: Tensor) -> Tensor:
    """Return logits [B, V, ...] as [N, V]."""
    return logits if logits.dim() == 2 else logits.movedim(1, -1).flatten(0, -2)


def hidden_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], keep_N: Tensor) -> Tensor:
    """Return the mean squared difference of hidden states, over layers, kept targets and channels.

    Args:
        student: The student's states, [..., T] each, with N places.
        teacher: The teacher's states of the same shapes.
        keep_N: Which places count.
    """
    weight_N = keep_N / keep_N.sum().clamp(min=1)
    terms = []
    for ours, theirs in zip(student, teacher, strict=True):
        wide = torch.promote_types(ours.dtype, torch.float32)
        difference = ours.flatten(0, -2).to(wide) - theirs.flatten(0, -2).to(wide)
        terms.append((difference.square().mean(-1) * weight_N.to(wide)).sum())
    return torch.stack(terms).mean()


def check_numbers(temperature: float, alpha: float) -> None:
    """Raise OptionError where the temperature or the weight of the teacher is out of its range."""
    if not (0 < temperature < math.inf):
        raise OptionError(f"temperature must be above 0 and finite; got {temperature}")
    if not 0 <= alpha <= 1:
        raise OptionError(f"alpha must be from 0 to 1; got {alpha}")


def check_shapes(student: Tensor, teacher: Any) -> None:
    """Raise TargetError where the logits of student and teacher differ in shape."""
    if not isinstance(teacher, Tensor):
        raise TargetError(f"the teacher's logits must be a tensor, not {type_name(teacher)}")
    if student.shape != teacher.shape:
        raise TargetError(
            f"the student's logits have the shape {list(student.shape)}, and the teacher's {list(teacher.shape)}; take "
            "a teacher with the same classes or the same vocabulary"
        )
