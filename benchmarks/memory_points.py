"""Build one arm of benchmarks/memory_table.py, and measure one call: what it adds to the memory of its process."""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.measure.memory import ResidentMemory, peak_rss_bytes, reset_peak_rss
from whet.models.memory_bank import Ltm, LtmConfig, LtmState
from whet.models.memory_bank.attention import SegmentAttention
from whet.techniques.mechanisms.deferred_logits import DeferredLogits

NAIVE, SDPA, BANK, BLOCKS = "naive attention", "SDPA", "window and bank", "bank, √n segments computed again"
ARMS = (NAIVE, SDPA, BANK, BLOCKS)
LAYERS, HEADS, WIDTH, VOCABULARY, SEGMENT, SLOTS, INNER = 1, 2, 64, 256, 256, 64, 128
_WARM_UP = 2 * SEGMENT
_READ_AT_ONCE = 64

# glibc's malloc gives memory back as soon as it is free, so that the peak is what is in use.
EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class Point:
    """Name one measurement.

    Attributes:
        arm: One of `ARMS`.
        mode: "training" or "inference".
        length: The tokens of the text.
        is_timed: Whether the call is timed in place of its memory.
    """

    arm: str
    mode: str
    length: int
    is_timed: bool = False


class NaiveAttention(SegmentAttention):
    """Compute causal self-attention by its definition, with all scores in memory."""

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, mask_TT: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]; no mask but the causal one."""
        B, T, D = x_BTD.shape
        q_BNTH, k_BNTH, v_BNTH = self.project(x_BTD, cos_TH, sin_TH)
        scores_BNTT = q_BNTH @ k_BNTH.transpose(-2, -1) / math.sqrt(self.head_dim)
        later_TT = torch.ones(T, T, dtype=torch.bool).triu(1)
        shares_BNTT = scores_BNTT.masked_fill(later_TT, -torch.inf).softmax(-1)
        output_BTD: Tensor = self.o_proj((shares_BNTT @ v_BNTH).transpose(1, 2).reshape(B, T, D))
        return output_BTD


def built(arm: str, length: int) -> Ltm:
    """Return an arm's model for texts of so many tokens, with the parameters of the arm with a bank, to about 1 %."""
    has_bank = arm in (BANK, BLOCKS)
    segment = SEGMENT if has_bank else length

    def config(slots: int, inner: int) -> LtmConfig:
        return LtmConfig.model_validate(
            {
                "vocab_size": VOCABULARY,
                "hidden_size": WIDTH,
                "intermediate_size": inner,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "attention_block_size": segment,
                "memory_slots": slots,
            }
        )

    with torch.device("meta"):
        with_bank, without = (num_parameters(Ltm(config(slots, INNER))) for slots in (SLOTS, 0))
    inner = INNER if has_bank else INNER + round((with_bank - without) / (3 * WIDTH * LAYERS))
    torch.manual_seed(0)
    model = Ltm(config(SLOTS if has_bank else 0, inner))
    if arm == NAIVE:
        for layer in model.layers:
            layer.self_attn.__class__ = NaiveAttention
    return model


def num_parameters(model: nn.Module) -> int:
    """Return the number of trained numbers."""
    return sum(weight.numel() for weight in model.parameters())


def train(model: Ltm, arm: str, tokens_BT: Tensor) -> None:
    """Compute the gradients of the mean loss of a text [1, T], whose tokens predict the next ones."""
    given_BT, targets_BT = tokens_BT, tokens_BT.roll(-1, 1)
    for weight in model.parameters():
        weight.grad = None
    if arm != BLOCKS:
        _loss(model, model.hidden(given_BT), targets_BT).backward()
        return
    length = tokens_BT.shape[1]
    block = SEGMENT * max(1, round(math.sqrt(length / SEGMENT)))
    state, total = model.new_state(len(tokens_BT)), torch.zeros(())

    def read(tokens_BT: Tensor, targets_BT: Tensor, before: LtmState) -> tuple[Tensor, LtmState]:
        after = before.changed(lambda tensor: tensor)
        hidden_BTD = model.hidden(tokens_BT, after)
        return _loss(model, hidden_BTD, targets_BT) * (tokens_BT.shape[1] / length), after

    for begin in range(0, length, block):
        part = slice(begin, begin + block)
        loss, state = checkpoint(read, given_BT[:, part], targets_BT[:, part], state, use_reentrant=False)
        total = total + loss
    total.backward()


@torch.no_grad()
def read(model: Ltm, arm: str, tokens_BT: Tensor) -> None:
    """Read a text [1, T], and compute the logits after its last token."""
    if arm == NAIVE:
        model.lm_head(model.hidden(tokens_BT)[:, -1])
        return
    state = model.new_state(len(tokens_BT))
    for begin in range(0, tokens_BT.shape[1], _READ_AT_ONCE):
        model.step(tokens_BT[:, begin : begin + _READ_AT_ONCE], state)


def measured(point: Point) -> dict[str, Any]:
    """Return the parameters, and the bytes that the call adds to the process; or the seconds of a call after it."""
    call = train if point.mode == "training" else read
    warm = built(point.arm, _WARM_UP)
    call(warm, point.arm, torch.randint(0, VOCABULARY, (1, _WARM_UP)))  # starts threads, and loads what is used
    del warm
    model = built(point.arm, point.length)
    tokens_BT = torch.randint(0, VOCABULARY, (1, point.length))
    held = ResidentMemory()()
    reset_peak_rss()
    call(model, point.arm, tokens_BT)
    peak = peak_rss_bytes() - held
    if not point.is_timed:
        return {"parameters": num_parameters(model), "bytes": peak}
    began = time.perf_counter()
    call(model, point.arm, tokens_BT)
    return {"parameters": num_parameters(model), "seconds": time.perf_counter() - began}


def _loss(model: Ltm, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy, computed in chunks."""
    logits = DeferredLogits(hidden_BTD[0], model.lm_head.weight, None, torch.float32, torch.float32)
    return F.cross_entropy(logits, targets_BT[0])
