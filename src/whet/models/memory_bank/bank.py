"""Keep what earlier segments said in a bank of slots: every token reads it, and each segment writes it once.

Each slot pools the segment with a query of its own, by content and by the place in the segment. So slots differ from
the start. A slot takes over a part g of what it pooled and keeps 1 - g of what it held: M <- (1 - g) M + g z, with
z = pooled(W_c h * sigmoid(W_g h)). A token reads softmax(q K^T / sqrt(C)) V over the slots' contents, where an empty
choice with score 0 lets it read nothing. The segment's own write is not yet in what its tokens read.

Sources: LM2 (Kang et al., 2025, arXiv:2502.06049) for gated slots; Memorizing Transformers (Wu et al., 2022,
arXiv:2203.08913) for an output gate; the correction for what was never written is that of Adam (arXiv:1412.6980).

Shape suffixes: B batch, m spans, t tokens of a span, D model width, C slot width, S slots, R = C + 2 numbers of a slot:
its contents times their weight, the weight, and the number of other slots that were merged into it.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.memory_bank.config import LtmConfig

GATE_SPEED = 10.0
"""Gates learn so many times as fast as other weights: their logits are weights times this.

Without it they stay near their first values. Source: https://huggingface.co/blog/infini-attention
"""

USAGE_KEPT = 0.9  # of a slot's usage from one write to the next
NEVER = -1e30  # the score of what has not been seen
_LEAST_WEIGHT = 1e-12


@dataclass
class BankState:
    """Hold the bank of one layer, and the span that is being pooled for its next write. All but ids are float.

    Attributes:
        rows_BSR: The slots: contents times weight, the weight (0 for a slot never written), and merged slots.
        ages_BS: The spans since the contents were written, on average, times weight.
        usage_BS: The part of the reads that went to a slot: a moving average over writes.
        mass_BS: The reads of a slot since the last write, in tokens.
        ids_BS: The number of the query that a slot pools with, int64; -1 for no slot.
        top_BS: The highest score of the span's tokens so far.
        total_BS: The sum of their exponentials.
        pooled_BSC: Their weighted sum of values; the last column is the gate's logit.
    """

    rows_BSR: Tensor
    ages_BS: Tensor
    usage_BS: Tensor
    mass_BS: Tensor
    ids_BS: Tensor
    top_BS: Tensor
    total_BS: Tensor
    pooled_BSC: Tensor

    @property
    def weight_BS(self) -> Tensor:
        """Return how much of a slot has been written, 0 to 1."""
        return self.rows_BSR[..., -2]

    @property
    def contents_BSC(self) -> Tensor:
        """Return the contents [B, S, C], 0 for slots that were never written."""
        return _contents(self.rows_BSR)


def new_bank(config: LtmConfig, batch_size: int, slots: int, dtype: torch.dtype, device: torch.device) -> BankState:
    C, shape = config.memory_width, (batch_size, slots)

    def zeros(*size: int) -> Tensor:
        return torch.zeros(*size, dtype=dtype, device=device)

    return BankState(
        rows_BSR=zeros(*shape, C + 2),
        ages_BS=zeros(*shape),
        usage_BS=zeros(*shape),
        mass_BS=zeros(*shape),
        ids_BS=torch.arange(slots, device=device).repeat(batch_size, 1),
        top_BS=zeros(*shape) + NEVER,
        total_BS=zeros(*shape),
        pooled_BSC=zeros(*shape, C + 1),
    )


class MemoryBank(nn.Module):
    def __init__(self, config: LtmConfig) -> None:
        super().__init__()
        D, C, S = config.hidden_size, config.memory_width, config.max_memory_slots
        self.span, self.slots = config.span, config.memory_slots
        self.q_proj = nn.Linear(D, C, bias=False)
        self.q_norm = nn.RMSNorm(C, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(C, eps=config.rms_norm_eps)
        self.o_proj = nn.Linear(C, D, bias=False)
        self.read_gate = nn.Linear(D, 1)
        self.pool_proj = nn.Linear(D, C, bias=False)
        self.value_proj = nn.Linear(D, C, bias=False)
        self.channel_gate = nn.Linear(D, C, bias=False)
        self.write_gate = nn.Linear(D, 1, bias=False)
        self.slot_queries = nn.Parameter(torch.empty(S, C))
        self.slot_centres = nn.Parameter(torch.empty(S))
        self.slot_sharpness = nn.Parameter(torch.empty(S))
        self.slot_gates = nn.Parameter(torch.empty(S))
        if not self.slot_queries.is_meta:
            self.initialise(None)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw new weights. Slots begin with a stripe of the segment each, and with gates of 0.05 to 0.5.

        Slots that write little keep for long what they hold, so that gradients reach far back.
        """
        for linear in (self.q_proj, self.pool_proj, self.value_proj, self.channel_gate, self.o_proj):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(linear.in_features), generator=generator)
        self.o_proj.weight.mul_(0.5)
        for gate in (self.read_gate, self.write_gate):
            nn.init.normal_(gate.weight, std=0.02 / GATE_SPEED, generator=generator)
        nn.init.zeros_(self.read_gate.bias)
        nn.init.normal_(self.slot_queries, std=0.5, generator=generator)
        place = (torch.arange(len(self.slot_queries)) % self.slots + 0.5) / self.slots
        self.slot_centres.copy_(place)
        self.slot_sharpness.fill_(math.log(2.0 * self.slots**2))  # a standard deviation of half a stripe
        order = torch.arange(len(self.slot_queries)) * 0.6180339887 % 1  # spread over all stripes
        self.slot_gates.copy_((-2.9 + 2.9 * order) / GATE_SPEED)

    def forward(
        self, h_BmtD: Tensor, state: BankState, offset: int = 0, *, ends: bool = True, track: bool = True
    ) -> tuple[Tensor, BankState]:
        """Read for every token, and write at the end of each span.

        Args:
            h_BmtD: The normalised input: whole spans, or (m = 1) a part of one.
            offset: The tokens of the span before the first one.
            ends: Whether the span ends with the last token.
            track: Whether usage and age are kept up.

        Returns:
            What is read, projected and gated [B, m, t, D], and the bank after the last token.
        """
        wide, keys_BmtC, values = state.rows_BSR.dtype, self.pool_proj(h_BmtD), self.value_proj(h_BmtD)
        values = torch.cat((values * torch.sigmoid(self.channel_gate(h_BmtD)), self.write_gate(h_BmtD)), -1)
        q_BmtC = self.q_proj(h_BmtD)
        with without_autocast(h_BmtD.device):  # what lasts for long is not rounded
            pooled = self._pool(keys_BmtC.to(wide), values.to(wide), state, offset)
            read_BmtC, after = self._through(_normed(q_BmtC.to(wide), self.q_norm), pooled, state, ends, track)
        read_BmtD = self.o_proj(read_BmtC.to(h_BmtD.dtype))
        return read_BmtD * torch.sigmoid(GATE_SPEED * self.read_gate(h_BmtD)), after

    def _through(
        self, q_BmtC: Tensor, pooled: tuple[Tensor, Tensor, Tensor], state: BankState, ends: bool, track: bool
    ) -> tuple[Tensor, BankState]:
        """Return what is read [B, m, t, C], and the bank after m spans, or after a part of one. See forward."""
        if not ends:
            out, mass = self._read(q_BmtC, state.rows_BSR[:, None])
            after = BankState(**vars(state))
            after.top_BS, after.total_BS, after.pooled_BSC = (part[:, 0] for part in pooled)
            after.mass_BS = state.mass_BS + mass[:, 0] if track else state.mass_BS
            return out, after
        rows, gates = self._written(*pooled[1:], state)
        before = [state.rows_BSR]
        for index in range(q_BmtC.shape[1]):
            before.append(torch.lerp(before[-1], rows[:, index], gates[:, index, :, None]))
        out, mass = self._read(q_BmtC, torch.stack(before[:-1], 1))
        after = BankState(**vars(state) | {"rows_BSR": before[-1]})
        after.top_BS, after.total_BS = torch.full_like(state.top_BS, NEVER), torch.zeros_like(state.total_BS)
        after.pooled_BSC = torch.zeros_like(state.pooled_BSC)
        if track:
            _track(after, mass, gates, [slots[..., -2] for slots in before], self.span)
        return out, after

    def _pool(self, keys_BmtC: Tensor, values: Tensor, state: BankState, offset: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the highest score, the sum of weights and the weighted sum of values, those of the state included."""
        t, wide = keys_BmtC.shape[2], keys_BmtC.dtype
        ids_BS = state.ids_BS.clamp(min=0)
        queries_BSC = self.slot_queries.to(wide)[ids_BS]
        place_t = (torch.arange(offset, offset + t, device=keys_BmtC.device, dtype=wide) + 0.5) / self.span
        away_BSt = (place_t - self.slot_centres.to(wide)[ids_BS][..., None]).square()
        bumps_BSt = away_BSt * self.slot_sharpness.to(wide).exp()[ids_BS][..., None]
        scores = queries_BSC[:, None] @ keys_BmtC.transpose(-2, -1) / math.sqrt(keys_BmtC.shape[-1])
        scores = scores - bumps_BSt[:, None]
        top = torch.maximum(scores.detach().amax(-1), state.top_BS[:, None])
        weights = (scores - top[..., None]).exp()
        kept = (state.top_BS[:, None] - top).exp()
        total = weights.sum(-1) + kept * state.total_BS[:, None]
        pooled = weights @ values + kept[..., None] * state.pooled_BSC[:, None]
        return top, total, pooled

    def _written(self, total: Tensor, pooled: Tensor, state: BankState) -> tuple[Tensor, Tensor]:
        """Return what spans write: the pooled rows [B, m, S, R], with weight 1, and the gates [B, m, S]."""
        found = pooled / total.clamp(min=_LEAST_WEIGHT)[..., None]
        gates_S = self.slot_gates.to(found.dtype)[state.ids_BS.clamp(min=0)]
        gates = torch.sigmoid(GATE_SPEED * (found[..., -1] + gates_S[:, None]))
        is_there = (state.ids_BS >= 0)[:, None] & (total > 0)
        one = torch.ones_like(found[..., -1:])
        rows = torch.cat((found[..., :-1], one, torch.zeros_like(one)), -1)
        return rows, gates * is_there

    def _read(self, q_BmtC: Tensor, rows_BmSR: Tensor) -> tuple[Tensor, Tensor]:
        """Return what tokens read [B, m, t, C], and how much of it was read from each slot [B, m, S]."""
        contents = _contents(rows_BmSR)
        keys = _normed(contents, self.k_norm)
        scores = q_BmtC @ keys.transpose(-2, -1) / math.sqrt(contents.shape[-1])
        scores = scores + rows_BmSR[..., None, :, -1].log1p()
        scores = scores.masked_fill(rows_BmSR[..., None, :, -2] <= 0, NEVER)
        shares = F.pad(scores, (0, 1)).softmax(-1)[..., :-1]
        return shares @ contents, shares.detach().sum(-2)


def _normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Normalise in the type of the input, whatever the weight's is."""
    return F.rms_norm(x, x.shape[-1:], norm.weight.to(x.dtype), norm.eps)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products are computed in the type of their factors, autocast or not."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()  # which costs less, and leaves no trace in an exported graph
    return torch.autocast(device.type, enabled=False)


def _contents(rows: Tensor) -> Tensor:
    return rows[..., :-2] / rows[..., -2:-1].clamp(min=_LEAST_WEIGHT)


@torch.no_grad()
def _track(after: BankState, mass_BmS: Tensor, gates_BmS: Tensor, weights: list[Tensor], span: int) -> None:
    """Update the usage and the age of slots over m writes."""
    usage, ages, mass = after.usage_BS, after.ages_BS, after.mass_BS
    for index in range(mass_BmS.shape[1]):
        mass = mass + mass_BmS[:, index]
        usage = USAGE_KEPT * usage + (1 - USAGE_KEPT) * mass / span
        ages = (1 - gates_BmS[:, index]) * (ages + weights[index])
        mass = torch.zeros_like(mass)
    after.usage_BS, after.ages_BS, after.mass_BS = usage, ages, mass
