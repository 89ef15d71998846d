"""Scans and convolutions against the references of those who published them, over the sizes of their own tests.

The tolerances are theirs too: state-spaces/mamba, tests/ops; Dao-AILab/causal-conv1d, tests; flash-linear-attention,
tests/ops, where an error is a root mean square relative to the reference's.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foreign_functions import functions, marks, module
from whet.kernels.causal_conv import causal_conv
from whet.kernels.selective_scan import scan_operator, selective_scan, ssd

pytestmark = [*marks, pytest.mark.timeout(600)]

INF = float("inf")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SCAN = {torch.float32: (6e-4, 2e-3), torch.float16: (3e-3, 5e-3), torch.bfloat16: (3e-2, 5e-2)}
STEP = {torch.float32: (3e-4, 1e-3), torch.float16: (5e-3, 1e-2), torch.bfloat16: (1e-2, 5e-2)}
HEADS_STEP = {torch.float32: (3e-4, 1e-3), torch.float16: (5e-3, 3e-2), torch.bfloat16: (1e-2, 1e-1)}
CONV = {torch.float32: (3e-4, 1e-3), torch.float16: (3e-3, 5e-3), torch.bfloat16: (1e-2, 5e-2)}


def close(found: Tensor, wanted: Tensor, tolerance: tuple[float, float], factors: tuple[float, float] = (1, 1)) -> None:
    rtol, atol = tolerance[0] * factors[0], tolerance[1] * factors[1]
    torch.testing.assert_close(found.float(), wanted.float(), rtol=rtol, atol=atol)


def leaves(tensors: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if x is None else x.detach().clone().requires_grad_() for name, x in tensors.items()}


def widened(tensors: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """The same numbers in float32. The references round what they compute of narrow ones, such as the gate."""
    return {name: None if x is None else x.float() for name, x in tensors.items()}


def gradients(
    outputs: tuple[Tensor, ...], weights: tuple[Tensor, ...], of: dict[str, Tensor | None]
) -> dict[str, Tensor]:
    named = {name: x for name, x in of.items() if x is not None}
    loss = sum((out * weight).sum() for out, weight in zip(outputs, weights, strict=True))
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("length", "dtype"),
    [*((length, torch.float32) for length in (128, 256, 512, 1024, 2048, 4096)), (372, DTYPES[1]), (372, DTYPES[2])],
)
def test_selective_scan(length: int, dtype: torch.dtype, groups: int) -> None:
    """test_selective_scan of tests/ops/test_selective_scan.py."""
    place = "mamba_ssm/ops/selective_scan_interface.py"
    theirs = functions("mamba", {place: ["selective_scan_ref"]})["selective_scan_ref"]
    torch.manual_seed(0)
    B, D, N = 2, 4, 8
    tensors: dict[str, Any] = {"A": -0.5 * torch.rand(D, N)}
    tensors |= {name: torch.randn(B, groups, N, length, dtype=dtype) for name in ("B", "C")}
    tensors |= {"D": torch.randn(D), "z": torch.randn(B, D, length, dtype=dtype), "bias": 0.5 * torch.rand(D)}
    tensors |= {"u": torch.randn(B, D, length, dtype=dtype), "delta": 0.5 * torch.rand(B, D, length, dtype=dtype)}
    x, y = leaves(widened(tensors)), leaves(tensors)
    wanted = theirs(*(x[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "bias")), True, True)

    def heads(part: Tensor) -> Tensor:  # [B, D, L] to [B, L, groups, D / groups]
        return part.unflatten(1, (groups, -1)).permute(0, 3, 1, 2)

    parameters = [y["A"].unflatten(0, (groups, -1)), *(y[name].permute(0, 3, 1, 2) for name in ("B", "C"))]
    rest = [y["D"].view(groups, -1), heads(y["z"]), y["bias"].view(groups, -1), None]
    out, last, *_ = scan_operator(heads(y["u"]), heads(y["delta"]), *parameters, *rest, True, -INF, INF, True)
    found = out.permute(0, 2, 3, 1).flatten(1, 2), last.flatten(1, 2)
    for part, right in zip(found, wanted, strict=True):
        close(part, right, SCAN[dtype])
    weights = torch.randn_like(wanted[0]), torch.zeros_like(wanted[1])
    right = gradients(wanted, weights, x)
    of_weights = tuple(max(1e-3, tolerance) for tolerance in SCAN[dtype])
    for name, gradient in gradients(found, weights, y).items():
        narrow = {"u": (2, 2), "delta": (5, 10), "B": (1, 1), "C": (1, 1)}
        tolerance = SCAN[dtype] if name in narrow else of_weights
        close(gradient, right[name], tolerance, narrow.get(name, (1, 5 if name == "A" else 1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("N", [16, 32, 64])
@pytest.mark.parametrize("D", [2048, 2064, 4096])
def test_a_step(D: int, N: int, gated: bool, dtype: torch.dtype) -> None:
    """test_selective_state_update of tests/ops/triton/test_selective_state_update.py."""
    place = "mamba_ssm/ops/triton/selective_state_update.py"
    theirs = functions("mamba", {place: ["selective_state_update_ref"]})["selective_state_update_ref"]
    torch.manual_seed(0)
    state, u, delta = torch.randn(2, D, N, dtype=dtype), *torch.randn(2, 2, D, dtype=dtype)
    bias, A, (B, C), direct = torch.rand(D) - 4.0, -torch.rand(D, N) - 1.0, torch.randn(2, 2, N), torch.randn(D)
    z = torch.randn_like(u) if gated else None
    after = state.float().clone()  # theirs is rounded before it is read
    wanted = theirs(after, u, delta, A, B, C, D=direct, z=z, dt_bias=bias, dt_softplus=True)
    u, delta, B, C, z = (None if part is None else part[:, None] for part in (u, delta, B, C, z))
    out, last = selective_scan(u, delta, A, B, C, direct, z, bias, state)
    close(out[:, 0], wanted, STEP[dtype])
    close(last, after, STEP[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("N", [16, 32, 64])
def test_a_step_of_heads(N: int, G: int, tied: bool, gated: bool, dtype: torch.dtype) -> None:
    """test_selective_state_update_with_heads of the same file."""
    place = "mamba_ssm/ops/triton/selective_state_update.py"
    theirs = functions("mamba", {place: ["selective_state_update_ref"]})["selective_state_update_ref"]
    torch.manual_seed(0)
    H, P = 2048 // 64, 64
    state, u = torch.randn(2, H, P, N, dtype=dtype), torch.randn(2, H, P, dtype=dtype)
    q = 1 if tied else P
    delta, bias = torch.randn(2, H, q, dtype=dtype), torch.rand(H, q) - 4.0
    A, direct = -torch.rand(H, q, 1 if tied else N) - 1.0, torch.randn(H, q)
    B, C = torch.randn(2, 2, G, N)
    z = torch.randn_like(u) if gated else None
    after = state.float().clone()
    wide = [part.expand(*part.shape[:-1], P) for part in (delta, bias, direct)]
    options = {"D": wide[2], "z": z, "dt_bias": wide[1], "dt_softplus": True}
    wanted = theirs(after, u, wide[0], A.expand(H, P, N), B, C, **options)
    u, delta, B, C, z = (None if part is None else part[:, None] for part in (u, delta, B, C, z))
    out, last, *_ = scan_operator(u, delta, A, B, C, direct, z, bias, state, True, -INF, INF, False)
    close(out[:, 0], wanted, HEADS_STEP[dtype])
    close(last, after, HEADS_STEP[dtype])


@pytest.mark.parametrize("chunk", [32, 64, 128])
def test_listing_1_of_the_ssd_paper(chunk: int) -> None:
    """ssd_minimal.py with the sizes of its own test, and a rate that is hundreds of times as strong."""
    theirs = functions("mamba", {"mamba_ssm/modules/ssd_minimal.py": ["segsum", "ssd_minimal_discrete"]})
    torch.manual_seed(42)
    L, H, P, N = 1024, 8, 64, 64
    tensors: dict[str, Any] = {"u": torch.randn(1, L, H, P), "delta": F.softplus(torch.randn(1, L, H) - 4)}
    tensors |= {"A": -torch.exp(torch.linspace(0, 6, H))}
    tensors |= {"B": torch.randn(1, L, 1, N), "C": torch.randn(1, L, 1, N), "initial": torch.randn(1, H, P, N)}
    x, y = leaves(tensors), leaves(tensors)
    few = [x[name].expand(1, L, H, N) for name in ("B", "C")]
    scaled, exponents = x["u"] * x["delta"][..., None], x["A"] * x["delta"]
    wanted = theirs["ssd_minimal_discrete"](scaled, exponents, *few, chunk, x["initial"][:, None])
    arguments = [y[name] for name in ("u", "delta", "A", "B", "C")]
    found = ssd(*arguments, initial_BHPN=y["initial"], softplus=False)
    for part, right in zip(found, wanted, strict=True):
        close(part, right, SCAN[torch.float32])
    weights = torch.randn_like(wanted[0]), torch.randn_like(wanted[1])
    right = gradients(wanted, weights, x)
    for name, gradient in gradients(found, weights, y).items():
        close_in_norm(gradient, right[name], 0.002)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 8, "max"])
@pytest.mark.parametrize("chunk", [64, 128])
def test_the_chunks_of_mamba2(chunk: int, groups: int | str, gated: bool) -> None:
    """ssd_chunk_scan_combined_ref with the rates, steps and groups of tests/ops/triton/test_ssd.py."""
    folder = "mamba_ssm/ops/triton/"
    places = {
        "ssd_combined.py": "ssd_chunk_scan_combined_ref",
        "ssd_chunk_scan.py": "chunk_scan_ref",
        "ssd_state_passing.py": "state_passing_ref",
        "ssd_chunk_state.py": "chunk_state_ref",
    }
    theirs = functions("mamba", {folder + file: [name] for file, name in places.items()})
    torch.manual_seed(chunk)
    L, H, P, N = 512, 16, 64, 32
    G = H if groups == "max" else int(groups)
    tensors: dict[str, Any] = {"u": torch.randn(2, L, H, P), "delta": torch.randn(2, L, H) - 4}
    tensors |= {"A": -0.1 * torch.rand(H), "B": torch.randn(2, L, G, N) / 5, "C": torch.randn(2, L, G, N)}
    tensors |= {"D": torch.randn(H), "z": torch.randn(2, L, H, P) if gated else None, "bias": torch.rand(H)}
    x, y = leaves(tensors), leaves(tensors)
    given = [x[name] for name in ("u", "delta", "A", "B", "C")]
    run = theirs["ssd_chunk_scan_combined_ref"]
    wanted = run(*given, chunk, D=x["D"], z=x["z"], dt_bias=x["bias"], dt_softplus=True)
    found, _ = ssd(*(y[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "bias")))
    close(found, wanted, SCAN[torch.float32])
    weight = torch.randn_like(wanted)
    right = gradients((wanted,), (weight,), x)
    for name, gradient in gradients((found,), (weight,), y).items():
        close_in_norm(gradient, right[name], 0.002)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_initial", [False, True])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("K", [2, 3, 4])
def test_convolutions(K: int, with_bias: bool, silu: bool, with_initial: bool, dtype: torch.dtype) -> None:
    """test_causal_conv1d of tests/test_causal_conv1d.py, for each of its lengths, with rows that lie apart."""
    place = "causal_conv1d/causal_conv1d_interface.py"
    theirs = functions("causal-conv1d", {place: ["causal_conv1d_ref"]})["causal_conv1d_ref"]
    torch.manual_seed(0)
    lengths = (1, 2, 8, 16, 32, 64, 128, 129, 130, 151, 256, 372, 512, 784, 1024, 1134, 2048, 4096)
    for length, D in (*((length, 64) for length in lengths), (151, 4128)):
        tensors: dict[str, Any] = {"x": torch.randn(2, length, D + 96, dtype=dtype)[..., 32 : 32 + D]}
        tensors |= {"weight": torch.randn(D, K), "bias": torch.randn(D) if with_bias else None}
        tensors |= {"initial": torch.randn(2, K - 1, D, dtype=dtype) if with_initial else None}
        x, y = leaves(tensors), leaves(tensors)
        before = None if x["initial"] is None else x["initial"].mT.to(x["weight"].dtype)
        out, state = theirs(x["x"].mT, x["weight"], x["bias"], before, True, None, "silu" if silu else None)
        wanted = out.mT, state.mT
        found = causal_conv(*y.values(), silu=silu)
        for part, right in zip(found, wanted, strict=True):
            close(part, right, CONV[dtype])
        weights = torch.randn_like(wanted[0]), torch.randn_like(wanted[1])
        right = gradients(wanted, weights, x)
        for name, gradient in gradients(found, weights, y).items():
            close(gradient, right[name], CONV[dtype] if name in ("x", "initial") else (1e-3, 1e-3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("length", [1, 4, 5])
@pytest.mark.parametrize("K", [2, 3, 4])
def test_steps_of_convolutions(K: int, length: int, with_bias: bool, silu: bool, dtype: torch.dtype) -> None:
    """test_causal_conv1d_update of the same file, whose state may be longer than the taps."""
    place = "causal_conv1d/causal_conv1d_interface.py"
    theirs = functions("causal-conv1d", {place: ["causal_conv1d_update_ref"]})["causal_conv1d_update_ref"]
    torch.manual_seed(0)
    for D in (2048, 2064, 4096):
        x, state = torch.randn(4, length, D, dtype=dtype), torch.randn(4, K + 5, D, dtype=dtype)
        weight, bias = torch.randn(D, K), torch.randn(D) if with_bias else None
        after = state.mT.contiguous()
        wanted = theirs(x.mT, after, weight, bias, "silu" if silu else None)
        out, last = causal_conv(x, weight, bias, state[:, 1 - K :], silu=silu)
        close(out, wanted.mT, CONV[dtype])
        assert torch.equal(last, after.mT[:, 1 - K :])


def close_in_norm(found: Tensor, wanted: Tensor, ratio: float, atol: float = 1e-6) -> None:
    """As flash-linear-attention compares: the error's root mean square, relative to the reference's."""
    assert not found.isnan().any() and not wanted.isnan().any()
    found, wanted = found.detach(), wanted.detach()
    error = found.double() - wanted.double()
    if float(error.abs().max()) > atol:
        assert float(error.square().mean().sqrt()) < ratio * (float(wanted.double().square().mean().sqrt()) + 1e-8)


@pytest.mark.parametrize(
    ("form", "B", "L", "H", "P", "scale", "normalizer", "dtype"),
    [
        ("recurrent", 1, 63, 1, 64, 1, 1, torch.float32),
        ("recurrent", 2, 500, 4, 60, 1, 1, torch.float32),
        ("chunk", 2, 1024, 8, 128, 1, 0.1, torch.float32),
        ("chunk", 2, 1024, 8, 128, 0.1, 1, torch.float32),
        ("chunk", 2, 1024, 8, 128, 1, 10, torch.float32),
        ("chunk", 4, 2048, 8, 64, 0.1, 1, torch.float32),
        ("chunk", 2, 1024, 8, 128, 1, 0.1, torch.float16),
        ("chunk", 2, 1024, 8, 128, 1, 10, torch.float16),
    ],
)
def test_simple_gated_linear_attention(
    form: str, B: int, L: int, H: int, P: int, scale: float, normalizer: float, dtype: torch.dtype
) -> None:
    """tests/ops/test_simple_gla.py: with the step -g and the rate -1, a state decays by exp(g)."""
    theirs = getattr(module("flash-linear-attention", "fla/ops/simple_gla/naive.py"), f"naive_{form}_simple_gla")
    torch.manual_seed(42)
    tensors: dict[str, Any] = {name: torch.randn(B, L, H, P, dtype=dtype) for name in ("q", "k", "v")}
    tensors |= {"g": F.logsigmoid(torch.randn(B, L, H)) / normalizer, "initial": torch.randn(B, H, P, P)}
    x, y = leaves(tensors), leaves(tensors)
    wanted = theirs(*(x[name] for name in "qkvg"), scale=scale, initial_state=x["initial"], output_final_state=True)
    scaled = y["v"] / -y["g"][..., None]
    initial = y["initial"].mT
    out, last = ssd(scaled, -y["g"], -torch.ones(H), y["k"], scale * y["q"], initial_BHPN=initial, softplus=False)
    found = out, last.mT
    for part, right in zip(found, wanted, strict=True):
        close_in_norm(part, right, 0.005)
    weights = torch.randn_like(found[0], dtype=torch.float32), torch.randn_like(found[1])
    right = gradients(wanted, weights, x)
    for name, gradient in gradients(found, weights, y).items():
        close_in_norm(gradient, right[name], 0.008, atol=2e-4 if name == "g" else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("B", "L", "H", "K", "V"), [(1, 63, 1, 64, 64), (2, 500, 3, 60, 60), (2, 1000, 3, 100, 100), (2, 1000, 3, 128, 256)]
)
def test_retention(B: int, L: int, H: int, K: int, V: int, dtype: torch.dtype) -> None:
    """tests/ops/test_retention.py: a head's rate is a constant."""
    theirs = module("flash-linear-attention", "fla/ops/retention/naive.py").naive_retention
    torch.manual_seed(42)
    tensors: dict[str, Any] = {"q": torch.randn(B, L, H, K, dtype=dtype), "k": torch.randn(B, L, H, K, dtype=dtype)}
    tensors |= {"v": torch.randn(B, L, H, V, dtype=dtype)}
    x, y = leaves(tensors), leaves(tensors)
    wanted = theirs(*(part.transpose(1, 2) for part in x.values())).transpose(1, 2)
    rates = torch.log1p(-torch.exp2(-5 - torch.arange(H, dtype=torch.float32)))
    found, _ = ssd(y["v"], torch.ones(B, L, H), rates, y["k"], K**-0.5 * y["q"], softplus=False)
    close_in_norm(found, wanted, 0.005)
    weight = torch.randn_like(wanted)
    right = gradients((wanted,), (weight,), x)
    for name, gradient in gradients((found,), (weight,), y).items():
        close_in_norm(gradient, right[name], 0.008)


@pytest.mark.parametrize(("B", "L", "D"), [(1, 63, 500), (2, 1024, 500), (2, 1024, 512), (2, 1024, 1000)])
def test_gated_recurrences_of_one_state(B: int, L: int, D: int) -> None:
    """tests/ops/test_hgrn.py: a channel has one state, and its step is -g."""
    theirs = module("flash-linear-attention", "fla/ops/hgrn/naive.py").naive_recurrent_hgrn
    torch.manual_seed(42)
    gate = torch.randn(B, L, D)
    tensors: dict[str, Any] = {"x": (1 - gate.sigmoid()) * torch.randn(B, L, D), "g": F.logsigmoid(gate)}
    tensors |= {"initial": torch.randn(B, D)}
    x, y = leaves(tensors), leaves(tensors)
    wanted = theirs(x["x"], x["g"], x["initial"], output_final_state=True)
    ones = torch.ones(B, L, 1)
    initial = y["initial"][..., None]
    scaled = y["x"] / -y["g"]
    out, last = selective_scan(scaled, -y["g"], -torch.ones(D, 1), ones, ones, initial_BDN=initial, softplus=False)
    found = out, last[..., 0]
    for part, right in zip(found, wanted, strict=True):
        close_in_norm(part, right, 0.005)
    weights = torch.randn_like(found[0]), torch.randn_like(found[1])
    right = gradients(wanted, weights, x)
    for name, gradient in gradients(found, weights, y).items():
        close_in_norm(gradient, right[name], 0.008)
