"""Predict the next token with a hybrid model, in readable PyTorch: attention, Mamba-2 and short convolutions in layers.

Attention and MLP are those of whet.models.decoder, Mamba-2 is that of whet.models.selective.

Shape suffixes: B batch, T tokens, D model width, H head width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from whet.models.decoder.reference import GatedMLP, times
from whet.models.decoder.rope import cosines_and_sines, inverse_frequencies, rotary_scale
from whet.models.hybrid.config import HybridConfig
from whet.models.hybrid.mixers import AttentionWithPast, ScaledMamba, ShortConv, SquaredMLP
from whet.models.hybrid.state import HybridLayerState, HybridState, check_state, new_state
from whet.models.recurrent import Recurrent
from whet.models.selective.documents import DocumentRows


class HybridLayer(nn.Module):
    """Add what the mixers make of the normalised input, then what the MLP makes of it: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: HybridConfig, index: int) -> None:
        super().__init__()
        mixers, D, eps = config.mixers[index], config.hidden_size, config.decoder.rms_norm_eps
        self.multipliers = config.multipliers
        self.input_layernorm = nn.RMSNorm(D, eps=eps) if mixers else None
        self.self_attn = AttentionWithPast(config) if "attention" in mixers else None
        self.mamba = ScaledMamba(config, config.mamba) if "mamba" in mixers and config.mamba is not None else None
        self.conv = ShortConv(config) if "conv" in mixers else None
        has_mlp = config.has_mlp(index)
        self.post_attention_layernorm = nn.RMSNorm(D, eps=eps) if has_mlp else None
        self.mlp: GatedMLP | SquaredMLP | None = None
        if has_mlp:
            is_gated = config.mlp == "silu gate"
            self.mlp = GatedMLP(config.decoder, self.multipliers.mlp_gate) if is_gated else SquaredMLP(config)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, state: HybridLayerState | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]. The residual is in the wider type of norms. A state is read and replaced."""
        if self.input_layernorm is not None:
            x_BTD = self._mix(x_BTD, self.input_layernorm(x_BTD), cos_TH, sin_TH, state)
        if self.mlp is None or self.post_attention_layernorm is None:
            return x_BTD
        narrow = self.mlp.down_proj.weight.dtype
        mlp_BTD: Tensor = self.mlp(self.post_attention_layernorm(x_BTD).to(narrow))
        return x_BTD + times(mlp_BTD, self.multipliers.mlp_out)

    def _mix(
        self, x_BTD: Tensor, normed_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, state: HybridLayerState | None
    ) -> Tensor:
        m, recurrent = self.multipliers, None if state is None else state.recurrent
        if self.self_attn is not None:
            normed_BTD = normed_BTD.to(self.self_attn.o_proj.weight.dtype)
            found_BTD = self.self_attn(times(normed_BTD, m.attention_in), cos_TH, sin_TH, state=state)
            x_BTD = x_BTD + times(found_BTD, m.attention_out)
        if self.mamba is not None:
            normed_BTD = normed_BTD.to(self.mamba.out_proj.weight.dtype)
            x_BTD = x_BTD + times(self.mamba(times(normed_BTD, m.mamba_in), recurrent), m.mamba_out)
        if self.conv is not None:
            x_BTD = x_BTD + self.conv(normed_BTD.to(self.conv.out_proj.weight.dtype), recurrent)
        return x_BTD


class Hybrid(Recurrent[HybridState]):
    inv_freq: Tensor

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        # Not filled on the meta device: there, torch's normal_ would import torch's compiler, which takes a second.
        empty = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=empty)
        self.layers = nn.ModuleList(HybridLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.decoder.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("inv_freq", inverse_frequencies(config.decoder), persistent=False)
        self.rotary_scale = rotary_scale(config.decoder)
        if not empty.is_meta:
            initialise(self)

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes by which the state of a sequence grows with each token: keys and values."""
        numbers = 2 * self.config.decoder.num_key_value_heads * self.config.decoder.head_dim
        return len(self.config.layers_with("attention")) * numbers * self.lm_head.weight.itemsize

    def new_state(self, batch_size: int = 1) -> HybridState:
        weight = self.embed_tokens.weight
        return new_state(self.config, batch_size, weight.dtype, weight.device)

    def _read(self, input_ids_BT: Tensor, state: HybridState | None, documents_BT: Tensor | None) -> Tensor:
        if documents_BT is not None:
            return DocumentRows.of(documents_BT).each(lambda ids_RL: self._read(ids_RL, None, None), input_ids_BT)
        if state is not None:
            check_state(state, self.config, len(input_ids_BT))
        embedded_BTD = self.embed_tokens(input_ids_BT)
        x_BTD = times(embedded_BTD.to(self.norm.weight.dtype), self.config.multipliers.embedding)
        first = 0 if state is None else state.num_tokens
        positions_T = torch.arange(first, first + input_ids_BT.shape[1], device=x_BTD.device)
        cos_TH, sin_TH = self._rotary(positions_T, embedded_BTD.dtype)
        after = None if state is None else [layer.copy() for layer in state.layers]
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, cos_TH, sin_TH, None if after is None else after[index])
        if state is not None and after is not None:  # all layers at once: an error on the way changes nothing
            state.layers, state.num_tokens = after, first + input_ids_BT.shape[1]
        normed_BTD: Tensor = self.norm(x_BTD).to(self.lm_head.weight.dtype)
        return normed_BTD

    def _rotary(self, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines [T, H] of the rotary angles, which are 0 without rotary positions."""
        frequencies = self.inv_freq if self.config.has_rotary else torch.zeros_like(self.inv_freq)
        return cosines_and_sines(frequencies, self.rotary_scale if self.config.has_rotary else 1.0, positions_T, dtype)

    def _logits(self, normed: Tensor) -> Tensor:
        return times(super()._logits(normed), self.config.multipliers.logits)


def initialise(model: Hybrid, generator: torch.Generator | None = None) -> None:
    """Draw new weights: the mixers' own, and normal ones with a standard deviation of 0.02 elsewhere."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, ScaledMamba | ShortConv):
            module.initialise(generator)
