"""Compute the mixers of hybrid models: attention with a past, Mamba-2 with factors, and gated short convolutions.

Sources: transformers, models/lfm2 (short convolutions), models/falcon_h1 (factors, and the order of gate and norm).

Shape suffixes: B batch, T tokens, S tokens read before and now, D model width, E inner width, C convolved channels, H
head width, N query heads, K key-value heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.decoder.reference import Attention, visible
from whet.models.hybrid.config import HybridConfig
from whet.models.hybrid.state import HybridLayerState
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.mixer import Convolution, GatedNorm, Mamba2Mixer, initialise_linear, unweighted_norm
from whet.models.selective.state import LayerState


class AttentionWithPast(Attention):
    """Compute causal self-attention over the tokens of a state and those that are given: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config.decoder)
        self.scale = config.multipliers.scores

    def forward(
        self,
        x_BTD: Tensor,
        cos_TH: Tensor,
        sin_TH: Tensor,
        mask_TT: Tensor | None = None,
        state: HybridLayerState | None = None,
    ) -> Tensor:
        """Map [B, T, D] to [B, T, D]. A state is read, and gets the keys and values of the tokens."""
        q_BNTH, k_BKSH, v_BKSH = self.project(x_BTD, cos_TH, sin_TH)
        num_new = x_BTD.shape[1]
        if state is not None and state.keys_BKTH is not None and state.values_BKTH is not None:
            k_BKSH = torch.cat((state.keys_BKTH, k_BKSH.to(state.keys_BKTH.dtype)), dim=2)
            v_BKSH = torch.cat((state.values_BKTH, v_BKSH.to(state.values_BKTH.dtype)), dim=2)
            state.keys_BKTH, state.values_BKTH = k_BKSH, v_BKSH
        positions_S = torch.arange(k_BKSH.shape[2], device=x_BTD.device)
        mask_TS = mask_TT
        if mask_TT is None and num_new < len(positions_S):
            mask_TS = visible(positions_S[-num_new:], positions_S, None)
        mixed_BNTH = F.scaled_dot_product_attention(
            q_BNTH, k_BKSH, v_BKSH, mask_TS, is_causal=mask_TS is None, scale=self.scale, enable_gqa=True
        )
        output_BTD: Tensor = self.o_proj(mixed_BNTH.transpose(1, 2).flatten(2))
        return output_BTD


class ShortConv(nn.Module):
    """Apply a convolution to what one gate lets in, and a second gate after it: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        D, bias = config.hidden_size, config.conv_bias
        self.in_proj = nn.Linear(D, 3 * D, bias=bias)
        self.conv = Convolution(D, config.conv_taps, bias, silu=False)
        self.out_proj = nn.Linear(D, D, bias=bias)

    def initialise(self, generator: torch.Generator | None) -> None:
        self.conv.initialise(generator)
        initialise_linear(self.in_proj, generator)
        initialise_linear(self.out_proj, generator)

    def forward(self, x_BTD: Tensor, state: LayerState | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]. A state is read and replaced."""
        lets_in_BTD, chooses_BTD, u_BTD = self.in_proj(x_BTD).chunk(3, dim=-1)
        output_BTD: Tensor = self.out_proj(chooses_BTD * self.conv(lets_in_BTD * u_BTD, state))
        return output_BTD


class ScaledMamba(Mamba2Mixer):
    """Compute Mamba-2 with factors, and with gate and norm in the order of the family: [B, T, D] -> [B, T, D]."""

    parts_scale: Tensor | None

    def __init__(self, config: HybridConfig, mamba: SelectiveConfig) -> None:
        super().__init__(mamba)
        E, D, groups = mamba.intermediate_size, config.hidden_size, mamba.n_groups
        if config.mamba_out_bias != mamba.use_bias:
            self.out_proj = nn.Linear(E, D, bias=config.mamba_out_bias)
        if config.gate_order == "gate":
            self.norm = Gate()
        elif config.gate_order == "norm, then gate":
            self.norm = NormThenGate(E, groups, mamba.layer_norm_epsilon)
        self.register_buffer("parts_scale", parts_scale(config), persistent=False)

    def project(self, x_BTD: Tensor) -> Tensor:
        projected = super().project(x_BTD)
        return projected if self.parts_scale is None else projected * self.parts_scale.to(projected.dtype)


def parts_scale(config: HybridConfig) -> Tensor | None:
    """Return the factor of each number that Mamba-2 projects its input to, on the CPU; None if all are 1."""
    factors, mamba = config.multipliers.mamba_parts, config.mamba
    if mamba is None or all(factor == 1.0 for factor in factors):
        return None
    of_groups = mamba.n_groups * mamba.state_size
    sizes = (mamba.intermediate_size, mamba.intermediate_size, of_groups, of_groups, mamba.num_heads)
    # The device is explicit, so that a model built under torch.device("meta") still gets real factors.
    parts = [torch.full((size,), factor, device="cpu") for size, factor in zip(sizes, factors, strict=True)]
    return torch.cat(parts)


class Gate(nn.Module):
    """Multiply by a gate's SiLU: [B, T, E] -> [B, T, E]."""

    def forward(self, y_BTE: Tensor, z_BTE: Tensor) -> Tensor:
        return y_BTE * F.silu(z_BTE)


class NormThenGate(GatedNorm):
    """Normalise each group of channels, then multiply by a gate's SiLU: [B, T, E] -> [B, T, E]."""

    def forward(self, y_BTE: Tensor, z_BTE: Tensor) -> Tensor:
        wide = torch.promote_types(y_BTE.dtype, torch.float32)
        normed = unweighted_norm(y_BTE.to(wide).unflatten(-1, (self.num_groups, -1)), self.eps).flatten(-2)
        return (self.weight.to(wide) * normed * F.silu(z_BTE.to(wide))).to(y_BTE.dtype)


class SquaredMLP(nn.Module):
    """Apply two matrices with the square of a ReLU between them: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        D, wide, bias = config.hidden_size, config.decoder.intermediate_size, config.decoder.mlp_bias
        self.up_proj = nn.Linear(D, wide, bias=bias)
        self.down_proj = nn.Linear(wide, D, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        output_BTD: Tensor = self.down_proj(F.relu(self.up_proj(x_BTD)).square())
        return output_BTD
