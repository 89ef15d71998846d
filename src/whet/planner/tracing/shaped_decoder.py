"""Make a plain decoder of any sizes that are planned, for traces: experts, latent attention, learned positions, biases.

whet has no such models. This one has their parameters, and keeps for backward what a plain implementation keeps. Routed
tokens are spread equally over experts. Values are as wide as queries, as kernels of flash attention need them.

Shape suffixes: B batch, T tokens, D model width, N heads, H head width, V vocabulary, E experts, I their inner width.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.decoder.rope import rotate
from whet.planner.model_shape import Experts, ModelShape

_DROPPED = 0.1


def _norm(shape: ModelShape, size: int | None = None) -> nn.Module:
    width = size or shape.hidden_size
    return nn.LayerNorm(width) if shape.norm == "layer" else nn.RMSNorm(width)


def _activation(shape: ModelShape) -> Callable[[Tensor], Tensor]:
    return F.silu if shape.is_gated else F.gelu


def _dropped(shape: ModelShape, x: Tensor) -> Tensor:
    """Drop numbers as a GPU's kernel does, which keeps a mask of a byte each."""
    return torch.native_dropout(x, _DROPPED, True)[0] if shape.drops else x


class ShapedAttention(nn.Module):
    """Compute causal self-attention with a fused kernel: [B, T, D] -> [B, T, D]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        D, N, bias = shape.hidden_size, shape.num_heads, shape.has_biases
        latent = shape.latent
        if latent is None:
            H = shape.head_size
            self.q_proj = nn.Linear(D, N * H, bias=bias)
            self.k_proj = nn.Linear(D, shape.num_kv_heads * H, bias=bias)
            self.v_proj = nn.Linear(D, shape.num_kv_heads * H, bias=bias)
            self.o_proj = nn.Linear(N * H, D, bias=bias)
            return
        H = latent.plain_size + latent.rotary_size
        if latent.query_rank:
            self.q_a_proj = nn.Linear(D, latent.query_rank, bias=False)
            self.q_a_norm = _norm(shape, latent.query_rank)
        self.q_proj = nn.Linear(latent.query_rank or D, N * H, bias=False)
        self.kv_a_proj = nn.Linear(D, latent.rank + latent.rotary_size, bias=False)
        self.kv_a_norm = _norm(shape, latent.rank)
        self.kv_b_proj = nn.Linear(latent.rank, N * (latent.plain_size + latent.value_size), bias=False)
        self.o_proj = nn.Linear(N * latent.value_size, D, bias=False)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        q, k, v = self._latent(x_BTD, cos_TH, sin_TH) if self.shape.latent else self._plain(x_BTD, cos_TH, sin_TH)
        B, N, T, H = q.shape
        size = v.shape[-1]
        mixed_BNTH = F.scaled_dot_product_attention(q, k, F.pad(v, (0, H - size)) if size < H else v, is_causal=True)
        mixed_BTD = mixed_BNTH[..., :size].transpose(1, 2).reshape(B, T, N * size)
        output_BTD: Tensor = self.o_proj(mixed_BTD)
        return output_BTD

    def _plain(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, _ = x_BTD.shape
        shape = self.shape
        q, k, v = (
            project(x_BTD).view(B, T, -1, shape.head_size).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if not shape.num_positions:
            q, k = rotate(q, cos_TH, sin_TH), rotate(k, cos_TH, sin_TH)
        if (groups := shape.num_heads // shape.num_kv_heads) > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return q, k, v

    def _latent(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, _ = x_BTD.shape
        latent, N = self.shape.latent, self.shape.num_heads
        assert latent is not None
        given = self.q_a_norm(self.q_a_proj(x_BTD)) if latent.query_rank else x_BTD
        q_BNTH = self.q_proj(given).view(B, T, N, -1).transpose(1, 2)
        q_plain, q_turned = q_BNTH.split([latent.plain_size, latent.rotary_size], dim=-1)
        small, k_turned = self.kv_a_proj(x_BTD).split([latent.rank, latent.rotary_size], dim=-1)
        kv_BNTH = self.kv_b_proj(self.kv_a_norm(small)).view(B, T, N, -1).transpose(1, 2)
        k_plain, v = kv_BNTH.split([latent.plain_size, latent.value_size], dim=-1)
        k_turned = rotate(k_turned[:, None], cos_TH, sin_TH).expand(B, N, T, latent.rotary_size)
        q = torch.cat([q_plain, rotate(q_turned, cos_TH, sin_TH)], dim=-1)
        return q, torch.cat([k_plain, k_turned], dim=-1), v


class ShapedMLP(nn.Module):
    """Apply an MLP, with a gate if the model has one: [..., D] -> [..., D]."""

    def __init__(self, shape: ModelShape, inner: int) -> None:
        super().__init__()
        self.shape = shape
        self.gate_proj = nn.Linear(shape.hidden_size, inner, bias=shape.has_biases) if shape.is_gated else None
        self.up_proj = nn.Linear(shape.hidden_size, inner, bias=shape.has_biases)
        self.down_proj = nn.Linear(inner, shape.hidden_size, bias=shape.has_biases)

    def forward(self, x: Tensor) -> Tensor:
        activation = _activation(self.shape)
        if self.gate_proj is None:
            inner = activation(self.up_proj(x))
        else:
            inner = activation(self.gate_proj(x)) * self.up_proj(x)
        output: Tensor = self.down_proj(inner)
        return output


class ShapedExperts(nn.Module):
    """Apply to each token some of many experts, and those that all tokens see: [B, T, D] -> [B, T, D]."""

    def __init__(self, shape: ModelShape, experts: Experts) -> None:
        super().__init__()
        self.shape, self.experts = shape, experts
        E, D, inner = experts.number, shape.hidden_size, experts.intermediate_size
        self.router = nn.Linear(D, E, bias=False)
        self.gate_EDI = nn.Parameter(torch.empty(E, D, inner)) if shape.is_gated else None
        self.up_EDI = nn.Parameter(torch.empty(E, D, inner))
        self.down_EID = nn.Parameter(torch.empty(E, inner, D))
        self.shared = ShapedMLP(shape, experts.shared * inner) if experts.shared else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        E, each = self.experts.number, self.experts.per_token
        x = x_BTD.reshape(-1, D)
        weights, chosen = self.router(x).softmax(-1).topk(each)
        order = chosen.flatten().argsort()
        rows = -(-order.numel() // E)  # a share that does not come out even is filled up
        given = F.pad(x[order // each], (0, 0, 0, rows * E - order.numel())).view(E, rows, D)
        activation = _activation(self.shape)
        inner = torch.bmm(given, self.up_EDI)
        inner = activation(inner) if self.gate_EDI is None else activation(torch.bmm(given, self.gate_EDI)) * inner
        routed = torch.bmm(inner, self.down_EID).view(-1, D)[: order.numel()]
        found = torch.zeros_like(x).index_add(0, order // each, routed * weights.flatten()[order][:, None])
        if self.shared is not None:
            found = found + self.shared(x)
        return found.view(B, T, D)


class ShapedLayer(nn.Module):
    """Apply attention, then an MLP or experts. Each reads the normalised input, and is added to it."""

    def __init__(self, shape: ModelShape, is_sparse: bool) -> None:
        super().__init__()
        self.shape = shape
        self.input_norm, self.second_norm = _norm(shape), _norm(shape)
        self.self_attn = ShapedAttention(shape)
        experts = shape.experts if is_sparse else None
        self.mlp: nn.Module
        if experts is None:
            self.mlp = ShapedMLP(shape, shape.intermediate_size)
        else:
            self.mlp = ShapedExperts(shape, experts)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        x_BTD = x_BTD + _dropped(self.shape, self.self_attn(self.input_norm(x_BTD), cos_TH, sin_TH))
        return x_BTD + _dropped(self.shape, self.mlp(self.second_norm(x_BTD)))


class ShapedDecoder(nn.Module):
    """Map token ids [B, T] to logits [B, T, V]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        D, V = shape.hidden_size, shape.vocab_size
        dense = shape.num_layers if shape.experts is None else shape.experts.num_dense_layers
        self.embed_tokens = nn.Embedding(V, D, _weight=torch.empty(V, D))
        self.embed_positions = nn.Embedding(shape.num_positions, D) if shape.num_positions else None
        self.layers = nn.ModuleList(ShapedLayer(shape, place >= dense) for place in range(shape.num_layers))
        self.norm = _norm(shape)
        self.lm_head = nn.Linear(D, V, bias=False)
        if shape.is_tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, input_ids_BT: Tensor) -> Tensor:
        x_BTD = self.embed_tokens(input_ids_BT)
        T = input_ids_BT.shape[1]
        if self.embed_positions is not None:
            x_BTD = x_BTD + self.embed_positions(torch.arange(T))
        x_BTD = _dropped(self.shape, x_BTD)
        size = self.shape.latent.rotary_size if self.shape.latent else self.shape.head_size
        angles_TH = torch.zeros(T, size, dtype=x_BTD.dtype)
        for layer in self.layers:
            x_BTD = layer(x_BTD, angles_TH, angles_TH)
        logits_BTV: Tensor = self.lm_head(self.norm(x_BTD))
        return logits_BTV
