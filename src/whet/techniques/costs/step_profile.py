"""Find where the time of an optimiser step goes: by phase, and by the kind of operator.

The phases are timed without instruments. The kinds of operators come from PyTorch's profiler in further steps; their
shares are scaled to the time of forward and backward.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from whet.core.workload.training import Trainer
from whet.measure.machine import Limits
from whet.techniques.mechanisms.packing.packed_masks import AttentionCounter

_PRODUCTS = ("mm", "bmm", "addmm", "addbmm", "baddbmm", "convolution", "mkldnn", "linear", "onednn")
_ATTENTION = ("attention",)
_LOSS = ("log_softmax", "nll_loss", "cross_entropy", "logsumexp")
_PARTS = {
    "data_s": "data",
    "products_s": "products",
    "attention_s": "attention",
    "loss_s": "loss",
    "other_s": "other operators",
    "optimizer_s": "optimiser",
}


class StepProfile(BaseModel, frozen=True):
    """Hold where the time of one optimiser step goes. Times are in seconds.

    Attributes:
        data_s: Waiting for the batch.
        optimizer_s: The optimiser: clipping, the update, setting gradients to zero.
        products_s: Matrix products and convolutions in forward and backward.
        attention_s: Fused attention in forward and backward.
        within_documents: The share of attention's products that would be left if each document of packed rows were
            computed by itself; 1.0 where no attention has a mask that does nothing but keep documents apart.
        loss_s: The softmax and the cross-entropy in forward and backward.
        other_s: All other operators of forward and backward, and what it costs to call them.
        flops: Floating-point operations of forward and backward.
        num_operators: Operators that forward and backward call.
        dtype: The dtype of most parameters, by number of elements.
    """

    total_s: float
    data_s: float = 0.0
    optimizer_s: float = 0.0
    products_s: float = 0.0
    attention_s: float = 0.0
    within_documents: float = 1.0
    loss_s: float = 0.0
    other_s: float = 0.0
    flops: int = 0
    num_operators: int = 0
    parameter_bytes: int = 0
    num_parameters: int = 0
    dtype: str = "float32"

    @property
    def parts(self) -> dict[str, tuple[str, float]]:
        """Return the parts of a step in the order of the loop: field -> (the part in words, seconds)."""
        return {name: (words, getattr(self, name)) for name, words in _PARTS.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Return the share that each part has of a step, by the part in words."""
        seconds = dict(self.parts.values())
        total_s = sum(seconds.values()) or 1.0
        return {name: part_s / total_s for name, part_s in seconds.items()}

    def bound(self, **left_s: float) -> float:
        """Return the highest speedup where some parts, by field ("loss_s"), take only so many seconds any more."""
        saved_s = sum(max(0.0, getattr(self, name) - left) for name, left in left_s.items())
        return self.total_s / max(self.total_s - saved_s, 1e-9) if self.total_s else 1.0

    def share_left(self, limits: Limits, dtype: str) -> float:
        """Return the least share of their time that products and attention take in another dtype.

        They take what the machine's limit in that dtype allows, or their time now by the ratio of the limits, if that
        is less: in float32 they may be further from their limit.
        """
        peak = limits.gemm.get(dtype, 0.0)
        gain = max(peak / limits.gemm.get("float32", 1.0), 1.0)
        now_s = self.products_s + self.attention_s
        return min(1 / gain, self.flops / peak / now_s) if self.flops and peak and now_s else 1 / gain

    def bound_in_fewer_bits(self, share: float) -> float:
        """Return the highest speedup where products and attention take a share of their time, and all else half."""
        return self.bound(
            products_s=self.products_s * share,
            attention_s=self.attention_s * share,
            loss_s=self.loss_s / 2,
            other_s=self.other_s / 2,
        )

    def reaching_limit_s(self, limits: Limits) -> float:
        """Return the seconds of products that reach the machine's limit in the model's dtype, or those now if less."""
        return min(self.products_s, self.flops / limits.gemm.get(self.dtype, limits.gemm.get("float32", 1e12)))

    def least_optimizer_s(self, limits: Limits, *, bytes_per_parameter: float = 28.0) -> float:
        """Return the least seconds of an update by bandwidth. AdamW in float32 reads four numbers and writes three."""
        return self.num_parameters * bytes_per_parameter / limits.read_bandwidth


def kind_of(operator: str) -> str:
    """Return the field of StepProfile that an operator's time belongs to."""
    name = operator.removeprefix("aten::").lower()
    if any(part in name for part in _ATTENTION):
        return "attention_s"
    if any(part in name for part in _LOSS):
        return "loss_s"
    if any(name == part or name.startswith((f"{part}_", f"{part}.", f"_{part}")) for part in _PRODUCTS):
        return "products_s"
    return "other_s"


def profile_steps(trainer: Trainer, *, num_steps: int = 3) -> StepProfile:
    """Profile a trainer whose optimiser has its state: time `num_steps` steps, then profile one and count one."""
    phases = [trainer.timed_step() for _ in range(num_steps)]
    totals = {name: sorted(one[name] for one in phases)[num_steps // 2] for name in phases[0]}
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        trainer.step()
    shares, num_operators = _shares(recorded.key_averages())
    with FlopCounterMode(display=False) as counter, AttentionCounter() as attention:
        trainer.step()
    compute_s = totals["compute_s"]
    parameters = list(trainer.model.parameters())
    return StepProfile(
        total_s=sum(totals.values()),
        data_s=totals["data_s"],
        optimizer_s=totals["optimizer_s"],
        **{name: share * compute_s for name, share in shares.items()},
        within_documents=attention.share,
        flops=int(counter.get_total_flops()),
        num_operators=num_operators,
        parameter_bytes=sum(p.nbytes for p in parameters),
        num_parameters=sum(p.numel() for p in parameters),
        dtype=_dtype_of(parameters),
    )


def _shares(averages: Any) -> tuple[Mapping[str, float], int]:
    """Return each kind's share of forward and backward, and how many operators they call."""
    seconds = dict.fromkeys(("products_s", "attention_s", "loss_s", "other_s"), 0.0)
    num_operators = 0
    for event in averages:
        if not event.key.startswith("aten::"):
            continue
        seconds[kind_of(event.key)] += event.self_cpu_time_total
        num_operators += event.count
    total = sum(seconds.values()) or 1.0
    return {name: value / total for name, value in seconds.items()}, num_operators


def _dtype_of(parameters: list[torch.nn.Parameter]) -> str:
    counts: dict[str, int] = {}
    for p in parameters:
        name = str(p.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + p.numel()
    return max(counts, key=lambda name: counts[name]) if counts else "float32"
