"""Define a decoder of the Llama family (Touvron et al., 2023, arXiv:2302.13971), read from a Hugging Face directory.

It has RMSNorm, rotary positions, grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245), a sliding window if
the config has one (Jiang et al., 2023, arXiv:2310.06825), and a SwiGLU MLP. Modules have the names that transformers
gives them, so that its weights can be loaded without renaming.

Shape suffixes: B batch, T tokens, D model width, N query heads, K key-value heads, H head width, V vocabulary.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.decoder.config import DecoderConfig, Rope
from whet.models.decoder.rope import cosines_and_sines, inverse_frequencies, rotary_scale, rotate

__all__ = ["Decoder", "DecoderConfig", "Rope", "inverse_frequencies"]


class Attention(nn.Module):
    """Compute causal self-attention, where groups of query heads share a key-value head: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        D = config.hidden_size
        self.q_proj = nn.Linear(D, self.num_heads * self.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * self.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, D, bias=config.o_bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps) if config.qk_norm else None

    def project(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [B, N, T, H], rotated keys [B, K, T, H] and values [B, K, T, H] of [B, T, D]."""
        B, T, _ = x_BTD.shape
        q_BTNH = self.q_proj(x_BTD).view(B, T, self.num_heads, self.head_dim)
        k_BTKH = self.k_proj(x_BTD).view(B, T, self.num_kv_heads, self.head_dim)
        v_BTKH = self.v_proj(x_BTD).view(B, T, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        q_BNTH = rotate(q_BTNH.transpose(1, 2), cos_TH, sin_TH)
        k_BKTH = rotate(k_BTKH.transpose(1, 2), cos_TH, sin_TH)
        return q_BNTH, k_BKTH, v_BTKH.transpose(1, 2)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, mask_TT: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D].

        Args:
            mask_TT: True where a token (row) attends to another one, [T, T] or [B, 1, T, T]. None: it attends to itself
                and all before it.
        """
        q_BNTH, k_BKTH, v_BKTH = self.project(x_BTD, cos_TH, sin_TH)
        return self.mixed(q_BNTH, k_BKTH, v_BKTH, mask_TT, is_causal=mask_TT is None)

    def mixed(
        self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask_TS: Tensor | None, *, is_causal: bool
    ) -> Tensor:
        """Return what tokens take from the S keys and values that they attend to, [B, T, D]."""
        B, N, T, H = q_BNTH.shape
        k_BNSH, v_BNSH = (x.repeat_interleave(N // self.num_kv_heads, dim=1) for x in (k_BKSH, v_BKSH))
        mixed_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BNSH, v_BNSH, mask_TS, is_causal=is_causal)
        output_BTD: Tensor = self.o_proj(mixed_BNTH.transpose(1, 2).reshape(B, T, N * H))
        return output_BTD


def times(x: Tensor, factor: float) -> Tensor:
    """Multiply by a factor. One of 1 costs nothing."""
    return x if factor == 1.0 else x * factor


class GatedMLP(nn.Module):
    """Apply SwiGLU (Shazeer, 2020, arXiv:2002.05202), whose gate may have a factor: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: DecoderConfig, gate_factor: float = 1.0) -> None:
        super().__init__()
        self.gate_factor = gate_factor
        D, wide, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(D, wide, bias=bias)
        self.up_proj = nn.Linear(D, wide, bias=bias)
        self.down_proj = nn.Linear(wide, D, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate = F.silu(times(self.gate_proj(x_BTD), self.gate_factor))
        output_BTD: Tensor = self.down_proj(gate * self.up_proj(x_BTD))
        return output_BTD


class DecoderLayer(nn.Module):
    """Apply attention, then the MLP. Each reads the normalised input, and is added to it: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, mask_TT: Tensor | None = None) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TH, sin_TH, mask_TT)
        mlp_BTD: Tensor = self.mlp(self.post_attention_layernorm(x_BTD))
        return x_BTD + mlp_BTD


def _called(layer: nn.Module, *given: Tensor | None) -> Tensor:
    output_BTD: Tensor = layer(*given)
    return output_BTD


class Decoder(nn.Module):
    inv_freq: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        # Not filled on the meta device: there, torch's normal_ would import torch's compiler, which takes a second.
        empty = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=empty)
        if not empty.is_meta:
            self.embed_tokens.reset_parameters()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("inv_freq", inverse_frequencies(config), persistent=False)
        self.rotary_scale = rotary_scale(config)

    def rotary(self, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines [..., T, H] and sines [..., T, H] of the rotary angles at positions [..., T]."""
        return cosines_and_sines(self.inv_freq, self.rotary_scale, positions_T, dtype)

    def forward(
        self, input_ids_BT: Tensor, positions_BT: Tensor | None = None, mask_B1TT: Tensor | None = None
    ) -> Tensor:
        """Map token ids, int64 [B, T] without padding, to the logits of the token after each [B, T, V].

        Args:
            positions_BT: The position of each token in its document, for rows that hold several; None counts from 0.
            mask_B1TT: True where a token (row) attends to another one. None: it attends to itself and all before it.
        """
        x_BTD = self.through(range(len(self.layers)), self.embed_tokens(input_ids_BT), positions_BT, mask_B1TT)
        logits_BTV: Tensor = self.lm_head(self.norm(x_BTD))
        return logits_BTV

    def through(
        self,
        places: Iterable[int],
        x_BTD: Tensor,
        positions_BT: Tensor | None = None,
        mask_B1TT: Tensor | None = None,
        call: Callable[..., Tensor] = _called,
    ) -> Tensor:
        """Apply some of the layers in their order, [B, T, D] -> [B, T, D].

        Args:
            places: Which ones, counted from 0.
            positions_BT: As in forward, and so is the mask.
            call: Calls a layer, given the layer and its arguments.
        """
        positions_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        cos_TH, sin_TH = self.rotary(positions_T if positions_BT is None else positions_BT[:, None], x_BTD.dtype)
        windows = {place: self.config.window_of(place) for place in places}
        masks = {w: _both(mask_B1TT, w, positions_T) for w in set(windows.values())}
        for place, window in windows.items():
            x_BTD = call(self.layers[place], x_BTD, cos_TH, sin_TH, masks[window])
        return x_BTD


def _both(mask_B1TT: Tensor | None, window: int | None, positions_T: Tensor) -> Tensor | None:
    """Return the mask of a layer: what both a given mask and the layer's window let a token see; None for no mask."""
    if window is None:
        return mask_B1TT
    mask_TT = visible(positions_T, positions_T, window)
    return mask_TT if mask_B1TT is None else mask_B1TT & mask_TT


def visible(query_positions_T: Tensor, key_positions_S: Tensor, window: int | None) -> Tensor:
    """Return which tokens a token attends to, bool [T, S]: itself and those before it, within the window."""
    ago_TS = query_positions_T[:, None] - key_positions_S
    return ago_TS >= 0 if window is None else (ago_TS >= 0) & (ago_TS < window)
