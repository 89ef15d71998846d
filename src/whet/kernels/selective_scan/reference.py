"""Compute a selective scan and its gradients in torch, token by token, as the reference and where there are no kernels.

    h[t] = exp(delta[t] A) h[t-1] + delta[t] B[t] u[t]        y[t] = C[t] h[t] + D u[t]        out = y silu(z)

Sources: Gu and Dao, 2023, arXiv:2312.00752 (Mamba-1: an A for each channel and state); Dao and Gu, 2024,
arXiv:2405.21060 (Mamba-2: one A and one delta a head). Both are written once, over tensors that broadcast.

Shape suffixes: B batch, L tokens, H heads, P channels of a head, N states, G groups of heads. Mamba-1 has one head. q
is P, or 1 where a head has one number; M is N, or 1 where a head has one rate.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ScanInputs:
    """Hold the tensors of a scan.

    Attributes:
        u_BLHP: The inputs.
        delta_BLHq: The step sizes, before bias and softplus.
        A_HqM: The rates, [H, P, N] or [H, 1, 1].
        B_BLGN: What inputs add to the states.
        C_BLGN: How states are read.
        D_Hq: How inputs pass to the output directly, if they do.
        z_BLHP: The gate, if there is one.
        bias_Hq: A bias of the step sizes, if there is one.
        initial_BHPN: The states before the first token. None: zeros.
        softplus: Whether softplus is applied to the step sizes, after the bias.
        delta_min: The step sizes are clamped to at least this, and to at most `delta_max`.
    """

    u_BLHP: Tensor
    delta_BLHq: Tensor
    A_HqM: Tensor
    B_BLGN: Tensor
    C_BLGN: Tensor
    D_Hq: Tensor | None
    z_BLHP: Tensor | None
    bias_Hq: Tensor | None
    initial_BHPN: Tensor | None
    softplus: bool
    delta_min: float
    delta_max: float

    @property
    def wide(self) -> torch.dtype:
        """Return the type that is computed in: float64 for float64 inputs, else float32."""
        return torch.promote_types(self.u_BLHP.dtype, torch.float32)

    def steps(self) -> tuple[Tensor, Tensor]:
        """Return the step sizes before softplus and as they are used, both [B, L, H, q]."""
        raw = self.delta_BLHq.to(self.wide)
        if self.bias_Hq is not None:
            raw = raw + self.bias_Hq
        delta = F.softplus(raw) if self.softplus else raw
        return raw, delta.clamp(self.delta_min, self.delta_max)

    def of_heads(self, x_BLGN: Tensor) -> Tensor:
        """Return what the groups have for each head, [B, L, H, N]."""
        heads = self.u_BLHP.shape[2] // x_BLGN.shape[2]
        return x_BLGN.to(self.wide).repeat_interleave(heads, dim=2)

    def start(self) -> Tensor:
        """Return the states before the first token, [B, H, P, N]."""
        if self.initial_BHPN is not None:
            return self.initial_BHPN.to(self.wide)
        B, _, H, P = self.u_BLHP.shape
        return self.u_BLHP.new_zeros(B, H, P, self.B_BLGN.shape[-1], dtype=self.wide)


def scan_states(x: ScanInputs) -> Tensor:
    """Return the states before the first token and after each token, [L + 1, B, H, P, N]."""
    _, delta = x.steps()
    added = x.of_heads(x.B_BLGN)[:, :, :, None] * (delta * x.u_BLHP.to(x.wide))[..., None]
    states = [x.start()]
    for of_token, added_by_token in zip(delta.unbind(1), added.unbind(1), strict=True):
        states.append(torch.exp(of_token[..., None] * x.A_HqM) * states[-1] + added_by_token)
    return torch.stack(states)


def finished(x: ScanInputs, y_BLHP: Tensor) -> tuple[Tensor, Tensor]:
    """Return out and out before the gate, [B, L, H, P], from what the states give."""
    if x.D_Hq is not None:
        y_BLHP = y_BLHP + x.D_Hq * x.u_BLHP.to(x.wide)
    out = y_BLHP if x.z_BLHP is None else y_BLHP * F.silu(x.z_BLHP.to(x.wide))
    return out.to(x.u_BLHP.dtype), y_BLHP


def outputs_of(x: ScanInputs, states_LBHPN: Tensor) -> tuple[Tensor, Tensor]:
    """Return out and out before the gate, [B, L, H, P], from the states after each token."""
    return finished(x, torch.einsum("lbhpn,blhn->blhp", states_LBHPN, x.of_heads(x.C_BLGN)))


def scan_reference(x: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return out [B, L, H, P] and the states after the last token [B, H, P, N]. Autograd can go through it."""
    states = scan_states(x)
    return outputs_of(x, states[1:])[0], states[-1]


def scan_gradients(x: ScanInputs, gout_BLHP: Tensor, glast_BHPN: Tensor | None) -> dict[str, Tensor]:
    """Return the gradients of a scan by the names u, delta, A, B, C, D, z, bias and initial."""
    states = scan_states(x)
    raw, delta = x.steps()
    u, B, C = x.u_BLHP.to(x.wide), x.of_heads(x.B_BLGN), x.of_heads(x.C_BLGN)
    found: dict[str, Tensor] = {}
    gy = gout_BLHP.to(x.wide)
    if x.z_BLHP is not None:
        z, (_, y) = x.z_BLHP.to(x.wide), outputs_of(x, states[1:])
        gate = torch.sigmoid(z)
        found["z"] = gy * y * gate * (1 + z * (1 - gate))
        gy = gy * z * gate
    found["u"] = gy * x.D_Hq if x.D_Hq is not None else torch.zeros_like(gy)
    if x.D_Hq is not None:
        found["D"] = (gy * u).sum((0, 1)).sum_to_size(x.D_Hq.shape)
    gC = torch.einsum("lbhpn,blhp->blhn", states[1:], gy)
    g = torch.zeros_like(states[0]) if glast_BHPN is None else glast_BHPN.to(x.wide)
    gB, gdelta, gA = torch.zeros_like(gC), torch.zeros_like(delta), torch.zeros_like(x.A_HqM, dtype=x.wide)
    for t in range(u.shape[1] - 1, -1, -1):
        g = g + gy[:, t, ..., None] * C[:, t, :, None]
        gB[:, t] = (g * (delta * u)[:, t, ..., None]).sum(2)
        of_du = (g * B[:, t, :, None]).sum(-1)
        g = g * torch.exp(delta[:, t, ..., None] * x.A_HqM)
        exponent = g * states[t]
        gdelta[:, t] = ((exponent * x.A_HqM).sum(-1) + of_du * u[:, t]).sum_to_size(gdelta[:, t].shape)
        gA += (exponent * delta[:, t, ..., None]).sum(0).sum_to_size(gA.shape)
        found["u"][:, t] += of_du * delta[:, t]
    unclamped = F.softplus(raw) if x.softplus else raw
    gdelta = gdelta.masked_fill((unclamped < x.delta_min) | (unclamped > x.delta_max), 0)
    if x.softplus:
        gdelta = gdelta * torch.sigmoid(raw)
    groups = x.B_BLGN.shape[2]
    found |= {"delta": gdelta, "A": gA, "initial": g}
    found |= {name: part.unflatten(2, (groups, -1)).sum(3) for name, part in (("B", gB), ("C", gC))}
    if x.bias_Hq is not None:
        found["bias"] = gdelta.sum((0, 1))
    return found
