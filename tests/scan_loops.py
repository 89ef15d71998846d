"""Plain loops over the tokens of selective scans, inputs for them, and how results are compared in float64."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Named = dict[str, Tensor | None]


def mamba1_loop(x: Named, softplus: bool = True) -> tuple[Tensor, Tensor]:
    """The recurrence of arXiv:2312.00752, one token and one sum after the other."""
    u, A = x["u"], x["A"]
    B_, L, D = u.shape
    h = u.new_zeros(B_, D, A.shape[1]) if x["initial"] is None else x["initial"]
    outputs = []
    for t in range(L):
        delta = x["delta"][:, t] if x["bias"] is None else x["delta"][:, t] + x["bias"]
        delta = F.softplus(delta) if softplus else delta
        h = torch.exp(delta[..., None] * A) * h + (delta * u[:, t])[..., None] * x["B"][:, t, None, :]
        y = (h * x["C"][:, t, None, :]).sum(-1)
        y = y if x["D"] is None else y + x["D"] * u[:, t]
        outputs.append(y if x["z"] is None else y * F.silu(x["z"][:, t]))
    return torch.stack(outputs, 1), h


def mamba2_loop(x: Named, limits: tuple[float, float] = (0.0, float("inf"))) -> tuple[Tensor, Tensor]:
    """The recurrence of arXiv:2405.21060 with one rate a head."""
    u = x["u"]
    B_, L, H, P = u.shape
    G, N = x["B"].shape[2:]
    h = u.new_zeros(B_, H, P, N) if x["initial"] is None else x["initial"]
    outputs = []
    for t in range(L):
        raw = x["delta"][:, t] if x["bias"] is None else x["delta"][:, t] + x["bias"]
        delta = F.softplus(raw).clamp(*limits)[..., None, None]
        b, c = (x[name][:, t].repeat_interleave(H // G, 1)[:, :, None] for name in "BC")
        h = torch.exp(delta * x["A"][:, None, None]) * h + delta * u[:, t, ..., None] * b
        y = (h * c).sum(-1)
        y = y if x["D"] is None else y + x["D"][:, None] * u[:, t]
        outputs.append(y if x["z"] is None else y * F.silu(x["z"][:, t]))
    return torch.stack(outputs, 1), h


def mamba1_inputs(B: int, L: int, D: int, N: int, seed: int = 0, optional: bool = True) -> Named:
    """Tensors whose rates decay strongly: a state off by one token would show."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    x: Named = {"u": draw(B, L, D), "delta": draw(B, L, D), "B": draw(B, L, N), "C": draw(B, L, N)}
    x["A"] = -torch.exp(draw(D, N)) * 2
    extra = {"D": draw(D), "z": draw(B, L, D), "bias": draw(D), "initial": draw(B, D, N)}
    return x | {name: value if optional else None for name, value in extra.items()}


def mamba2_inputs(
    B: int, L: int, H: int, P: int, G: int, N: int, seed: int = 0, optional: bool = True, gated: bool = True
) -> Named:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    x: Named = {"u": draw(B, L, H, P), "delta": draw(B, L, H), "B": draw(B, L, G, N), "C": draw(B, L, G, N)}
    x["A"] = -torch.exp(draw(H)) * 2
    extra = {"D": draw(H), "z": draw(B, L, H, P) if gated else None, "bias": draw(H), "initial": draw(B, H, P, N)}
    return x | {name: value if optional else None for name, value in extra.items()}


def in_order(x: Named) -> list[Tensor | None]:
    return [x[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "bias", "initial")]


def doubled(x: Named) -> Named:
    return {name: None if value is None else value.detach().double() for name, value in x.items()}


def off(found: Tensor, wanted: Tensor, least: float = 1e-30) -> float:
    """The distance relative to the wanted one's norm, or to `least` where that is larger."""
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=least))


def gradients(function: Any, x: Named, weights: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    leaves = {name: value.detach().requires_grad_() for name, value in x.items() if value is not None}
    results = function(x | leaves)
    loss = sum((part * weight.to(part.dtype)).sum() for part, weight in zip(results, weights, strict=True))
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def check_all(function: Any, loop: Any, x: Named, tolerance: float = 1e-5) -> None:
    """Outputs, last states and all gradients, those of the last states too."""
    exact = doubled(x)
    wanted = loop(exact)
    with torch.no_grad():
        found = function(x)
    for value, right in zip(found, wanted, strict=True):
        assert off(value, right) < tolerance
    weights = tuple(torch.randn(part.shape, generator=torch.Generator().manual_seed(9)) for part in wanted)
    right_gradients = gradients(loop, exact, weights)
    least = 1e-6 * max(float(gradient.norm()) for gradient in right_gradients.values())
    for name, gradient in gradients(function, x, weights).items():
        assert gradient.shape == x[name].shape
        assert gradient.dtype is x[name].dtype
        # A gradient that is nothing beside the others is what is left of a sum that cancels.
        assert off(gradient, right_gradients[name], least) < tolerance, name
