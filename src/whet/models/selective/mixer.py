"""Compute the mixers of selective state-space models, as Mamba-1 (with Falcon-Mamba) and Mamba-2 do.

Sources: Gu and Dao, 2023, arXiv:2312.00752; Dao and Gu, 2024, arXiv:2405.21060; Zuo et al., 2024, arXiv:2410.05355
(Falcon-Mamba). Names and shapes of parameters are those of transformers.

Shape suffixes: B batch, T tokens, D model width, E inner width, N states, R rank of step sizes, C convolved channels,
H heads, P channels of a head, G groups of heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.kernels.causal_conv import causal_conv
from whet.kernels.selective_scan import selective_scan, ssd
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.state import LayerState


class Convolution(nn.Module):
    """Apply a convolution of each channel with its past, then SiLU unless it is left out: [B, T, C] -> [B, T, C]."""

    def __init__(self, channels: int, taps: int, bias: bool, silu: bool = True) -> None:
        super().__init__()
        self.silu = silu
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        if not self.weight.is_meta:
            self.initialise(None)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw new taps as torch does for new convolutions. Biases are 0."""
        bound = 1 / math.sqrt(self.weight.shape[-1])
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def forward(self, x_BTC: Tensor, state: LayerState | None) -> Tensor:
        """Map [B, T, C] to [B, T, C]. A state is read and replaced."""
        before = state.conv_BSC if state else None
        y_BTC, last_BSC = causal_conv(x_BTC, self.weight[:, 0], self.bias, before, silu=self.silu)
        if state is not None:
            state.conv_BSC = last_BSC.to(state.conv_BSC.dtype)
        return y_BTC


class Mamba1Mixer(nn.Module):
    """Compute a scan over tokens in which every channel has rates of its own: [B, T, D] -> [B, T, D].

    Attributes:
        no_products: The parameters that no product multiplies; see whet.core.workload.plain_parameters.
    """

    no_products = ("A_log", "D")

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        D, E, N, self.rank = config.hidden_size, config.intermediate_size, config.state_size, config.time_step_rank
        self.num_states = N
        self.eps = config.mixer_rms_eps if config.norms_projections else None
        self.in_proj = nn.Linear(D, 2 * E, bias=config.use_bias)
        self.conv1d = Convolution(E, config.conv_kernel, config.use_conv_bias)
        self.x_proj = nn.Linear(E, self.rank + 2 * N, bias=False)
        self.dt_proj = nn.Linear(self.rank, E)
        self.A_log = nn.Parameter(torch.empty(E, N).copy_(_logarithms(N)))
        self.D = nn.Parameter(torch.ones(E))
        self.out_proj = nn.Linear(E, D, bias=config.use_bias)
        self.config = config

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw new weights. Source: mamba_ssm/modules/mamba_simple.py."""
        initialise_linear(self.in_proj, generator)
        self.conv1d.initialise(generator)
        initialise_linear(self.x_proj, generator)
        initialise_linear(self.out_proj, generator, 1 / math.sqrt(self.config.num_hidden_layers))
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5, generator=generator)
        initialise_steps(self.dt_proj.bias, self.config, generator)

    def forward(self, x_BTD: Tensor, state: LayerState | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]. A state is read and replaced."""
        u_BTE, z_BTE = self.in_proj(x_BTD).chunk(2, dim=-1)
        u_BTE = self.conv1d(u_BTE, state)
        parts = self.x_proj(u_BTE).split([self.rank, self.num_states, self.num_states], dim=-1)
        step_BTR, B_BTN, C_BTN = parts if self.eps is None else (unweighted_norm(part, self.eps) for part in parts)
        delta_BTE = F.linear(step_BTR, self.dt_proj.weight)
        A_EN = _rates(self.A_log)
        start = None if state is None else state.scan
        y_BTE, last = selective_scan(u_BTE, delta_BTE, A_EN, B_BTN, C_BTN, self.D, z_BTE, self.dt_proj.bias, start)
        if state is not None:
            state.scan = last
        output_BTD: Tensor = self.out_proj(y_BTE)
        return output_BTD


class Mamba2Mixer(nn.Module):
    """Compute a scan over tokens where a head has one rate: [B, T, D] -> [B, T, D]. For no_products see Mamba1Mixer."""

    no_products = ("A_log", "D", "dt_bias")

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        D, E, N, H = config.hidden_size, config.intermediate_size, config.state_size, config.num_heads
        self.head_dim, self.num_groups = config.head_dim, config.n_groups
        self.limits = config.time_step_limit
        self.parts = [E, config.conv_size, H]
        self.convolved = [E, self.num_groups * N, self.num_groups * N]
        self.in_proj = nn.Linear(D, sum(self.parts), bias=config.use_bias)
        self.conv1d = Convolution(config.conv_size, config.conv_kernel, config.use_conv_bias)
        self.dt_bias = nn.Parameter(torch.zeros(H))
        self.A_log = nn.Parameter(torch.empty(H).copy_(_logarithms(H)))
        self.D = nn.Parameter(torch.ones(H))
        self.norm: nn.Module = GatedNorm(E, self.num_groups, config.layer_norm_epsilon)
        self.out_proj = nn.Linear(E, D, bias=config.use_bias)
        self.config = config

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw new weights. Source: mamba_ssm/modules/mamba2.py."""
        initialise_linear(self.in_proj, generator)
        self.conv1d.initialise(generator)
        initialise_linear(self.out_proj, generator, 1 / math.sqrt(self.config.num_hidden_layers))
        initialise_steps(self.dt_bias, self.config, generator)

    def project(self, x_BTD: Tensor) -> Tensor:
        """Return gates, what is convolved, and step sizes, side by side: [B, T, E + C + H]."""
        projected: Tensor = self.in_proj(x_BTD)
        return projected

    def forward(self, x_BTD: Tensor, state: LayerState | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]. A state is read and replaced."""
        z_BTE, wide_BTC, step_BTH = self.project(x_BTD).split(self.parts, dim=-1)
        u_BTE, B, C = self.conv1d(wide_BTC, state).split(self.convolved, dim=-1)
        u_BTHP = u_BTE.unflatten(-1, (-1, self.head_dim))
        B_BTGN, C_BTGN = (part.unflatten(-1, (self.num_groups, -1)) for part in (B, C))
        A_H = _rates(self.A_log)
        start = None if state is None else state.scan
        rest = (self.D, None, self.dt_bias, start)
        y_BTHP, last = ssd(u_BTHP, step_BTH, A_H, B_BTGN, C_BTGN, *rest, delta_limits=self.limits)
        if state is not None:
            state.scan = last
        output_BTD: Tensor = self.out_proj(self.norm(y_BTHP.flatten(-2), z_BTE))
        return output_BTD


class GatedNorm(nn.Module):
    """Multiply by a gate's SiLU, then normalise each group of channels: [B, T, E] -> [B, T, E]."""

    def __init__(self, width: int, num_groups: int, eps: float) -> None:
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, y_BTE: Tensor, z_BTE: Tensor) -> Tensor:
        wide = torch.promote_types(y_BTE.dtype, torch.float32)
        gated = (y_BTE.to(wide) * F.silu(z_BTE.to(wide))).unflatten(-1, (self.num_groups, -1))
        normed = unweighted_norm(gated, self.eps).flatten(-2)
        return self.weight.to(y_BTE.dtype) * normed.to(y_BTE.dtype)


def initialise_linear(linear: nn.Linear, generator: torch.Generator | None, scale: float = 1.0) -> None:
    """Draw weights as torch does for new layers, times a scale. Biases are 0."""
    bound = scale / math.sqrt(linear.in_features)
    nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def initialise_steps(bias: nn.Parameter, config: SelectiveConfig, generator: torch.Generator | None) -> None:
    """Draw biases such that the steps after softplus lie between time_step_min and time_step_max."""
    least, most = math.log(config.time_step_min), math.log(config.time_step_max)
    step = torch.empty_like(bias).uniform_(least, most, generator=generator).exp()
    step = step.clamp(min=config.time_step_floor)
    with torch.no_grad():
        bias.copy_(step + torch.log(-torch.expm1(-step)))


def _rates(A_log: Tensor) -> Tensor:
    """Return the rates, which are negative, in float32 or float64."""
    return -torch.exp(A_log.to(torch.promote_types(A_log.dtype, torch.float32)))


def unweighted_norm(x: Tensor, eps: float) -> Tensor:
    """Divide rows by the root of their mean square (Zhang and Sennrich, 2019, arXiv:1910.07467)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _logarithms(num: int) -> Tensor:
    """Return those of 1 to `num`, on the CPU: on the meta device, log would import torch's compiler for seconds."""
    return torch.arange(1, num + 1, device="cpu").float().log()
