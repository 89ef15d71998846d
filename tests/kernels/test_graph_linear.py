"""Linear layers of a plan with norm, activation and residual, against float64 over the numbers that the kernels see."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.graph.operations import Activation, Gated, Linear, Norm, Normalise, View
from whet.kernels.graph.plan import Plan
from whet.kernels.linear import pack_weights
from whet.kernels.linear.layout import Kind, interleave
from whet.kernels.linear.reference import quantise_rows

KINDS = pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16, Kind.S8, Kind.S4], ids=lambda kind: kind.name)
SHAPES = [(1, 16, 32), (1, 1, 1), (2, 15, 31), (3, 37, 45), (6, 70, 130), (7, 130, 100), (13, 64, 256), (211, 90, 96)]
ACTIVATIONS = {
    Activation.NONE: lambda x: x,
    Activation.RELU: torch.relu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Activation.SILU: functional.silu,
    Activation.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
    Activation.TANH: torch.tanh,
    Activation.SIGMOID: torch.sigmoid,
}


def rounded(x: Tensor, kind: Kind) -> Tensor:
    """Activations as the kernels multiply them."""
    if kind is Kind.F32:
        return x.double()
    return (x.float().bfloat16() if kind is Kind.BF16 else quantise_rows(x.float())).double()


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y - wanted).abs().max() / wanted.abs().max().clamp_min(1))


@KINDS
def test_is_the_exact_sum_with_bias_and_residual(kernels: Library, kind: Kind) -> None:
    for M, N, K in SHAPES:
        x, residual, out = torch.randn(M, K), torch.randn(M, N), torch.empty(M, N)
        weights = pack_weights(torch.randn(N, K), kind, torch.randn(N))
        assert weights.bias is not None
        Plan([Linear(View.of(x), weights, View.of(out), residual=View.of(residual))]).run()
        wanted = rounded(x, kind) @ weights.dequantised().double().T + weights.bias[:N] + residual
        assert error(out, wanted) < 1e-5, (M, N, K)


@pytest.mark.parametrize("activation", Activation, ids=lambda activation: activation.name)
def test_activations(kernels: Library, activation: Activation) -> None:
    """Over a range in which each of them bends, and far outside."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -60.0, 60.0, -90.0, 90.0])])[:, None].contiguous()
    out = torch.empty_like(x)
    Plan([Linear(View.of(x), pack_weights(torch.ones(1, 1), Kind.F32), View.of(out), activation)]).run()
    wanted = ACTIVATIONS[activation](x.double())
    assert float(((out - wanted).abs() / wanted.abs().clamp_min(1)).max()) < 1e-6
    x[::2] = torch.nan
    Plan([Linear(View.of(x), pack_weights(torch.ones(1, 1), Kind.F32), View.of(out), activation)]).run()
    assert torch.equal(out.isnan(), x.isnan())


@KINDS
@pytest.mark.parametrize("is_rms", [False, True])
def test_a_norm_before_it(kernels: Library, kind: Kind, is_rms: bool) -> None:
    """The rounding of int8 may fall to the other side of a half: a step of one of 127 levels, a few times in a row."""
    for M, N, K in [(1, 20, 16), (5, 33, 77), (40, 16, 200)]:
        x, weight, bias, out = torch.randn(M, K) * 3 + 1, torch.rand(K) + 0.5, torch.randn(K), torch.empty(M, N)
        weights = pack_weights(torch.randn(N, K), kind)
        norm = Norm(View.of(weight), None if is_rms else View.of(bias), 1e-5, is_rms)
        Plan([Linear(View.of(x), weights, View.of(out), norm=norm)]).run()
        if is_rms:
            normalised = functional.rms_norm(x.double(), (K,), weight.double(), 1e-5)
        else:
            normalised = functional.layer_norm(x.double(), (K,), weight.double(), bias.double(), 1e-5)
        wanted = rounded(normalised, kind) @ weights.dequantised().double().T
        assert error(out, wanted) < {Kind.F32: 1e-5, Kind.BF16: 3e-3}.get(kind, 6e-3), (M, N, K)


@KINDS
def test_the_residual_may_be_the_output(kernels: Library, kind: Kind) -> None:
    x, out, weights = torch.randn(9, 40), torch.randn(9, 30), pack_weights(torch.randn(30, 40), kind)
    wanted = rounded(x, kind) @ weights.dequantised().double().T + out
    Plan([Linear(View.of(x), weights, View.of(out), residual=View.of(out))]).run()
    assert error(out, wanted) < 1e-5


@KINDS
@pytest.mark.parametrize("width", [16, 37, 100])
def test_a_gated_layer(kernels: Library, kind: Kind, width: int) -> None:
    M, K = 11, 45
    x, out = torch.randn(M, K), torch.full((M, width + 5), 7.0)
    gate, up, gate_bias, up_bias = torch.randn(width, K), torch.randn(width, K), torch.randn(width), torch.randn(width)
    weights = pack_weights(interleave(gate, up), kind, interleave(gate_bias, up_bias))
    Plan([Gated(View.of(x), weights, View.of(out[:, :width]), Activation.GELU)]).run()
    halves = weights.dequantised().double().unflatten(0, (-1, 2, 16)).transpose(0, 1).flatten(1, 2)[:, :width]
    gates, ups = (rounded(x, kind) @ half.T for half in halves)
    wanted = functional.gelu(gates + gate_bias) * (ups + up_bias)
    assert error(out[:, :width], wanted) < 1e-5
    assert bool((out[:, width:] == 7).all())


@KINDS
def test_rows_that_lie_apart(kernels: Library, kind: Kind) -> None:
    """The first tokens of sequences, and all but the first, as views of what holds them all."""
    tokens, weights = torch.randn(3, 5, 48), pack_weights(torch.randn(20, 48), kind, torch.randn(20))
    whole, out = torch.empty(15, 20), torch.full((3, 5, 30), 7.0)
    Plan([Linear(View.of(tokens.view(15, 48)), weights, View.of(whole))]).run()
    Plan([
        Linear(View.of(tokens[:, 0]), weights, View.of(out[:, 0, :20])),
        Linear(View.of(tokens[:, 1:]), weights, View.of(out[:, 1:, :20])),
    ]).run()  # fmt: skip
    assert torch.equal(out[:, :, :20], whole.view(3, 5, 20))
    assert bool((out[:, :, 20:] == 7).all())


@KINDS
def test_a_norm_before_it_is_the_same_on_its_own(kernels: Library, kind: Kind) -> None:
    """A plan does an operation Normalise while the rows are made ready for the layer that reads it."""
    x, other, weights = torch.randn(9, 50), torch.randn(9, 50), pack_weights(torch.randn(20, 50), kind)
    norm = Norm(None, None, 1e-6, False)
    together = [torch.empty(9, 50), torch.empty(9, 50), torch.empty(9, 20)]
    alone = [torch.empty(9, 50), torch.empty(9, 50), torch.empty(9, 20)]
    for (total, normalised, out), is_split in ((together, False), (alone, True)):
        first = Normalise(View.of(x), norm, View.of(normalised), View.of(other), View.of(total))
        second = Linear(View.of(normalised), weights, View.of(out))
        for plan in [Plan([first]), Plan([second])] if is_split else [Plan([first, second])]:
            plan.run()
    assert all(map(torch.equal, together, alone))
    assert error(together[1], functional.layer_norm((x + other).double(), (50,), eps=1e-6)) < 1e-5


@KINDS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(rows=st.lists(st.integers(0, 250), min_size=1, max_size=250))
def test_a_row_does_not_depend_on_its_company(kernels: Library, kind: Kind, rows: list[int]) -> None:
    torch.manual_seed(0)
    x, residual, weights = torch.randn(251, 72), torch.randn(251, 70), pack_weights(torch.randn(70, 72), kind)
    norm = Norm(None, None, 1e-6, True)

    def layer(chosen: list[int]) -> Tensor:
        some, more, out = x[chosen], residual[chosen], torch.empty(len(chosen), 70)
        Plan([Linear(View.of(some), weights, View.of(out), Activation.GELU, norm, View.of(more))]).run()
        return out

    alone = torch.cat([layer([i]) for i in sorted(set(rows))])
    assert torch.equal(layer(rows), alone[[sorted(set(rows)).index(i) for i in rows]])


def test_what_does_not_fit_is_refused(kernels: Library) -> None:
    x, out, weights = torch.randn(3, 40), torch.empty(3, 20), pack_weights(torch.randn(20, 40), Kind.S8)
    with pytest.raises(InputsError, match=r"operation 1, Linear: x has the shape \[3, 39\], not \[3, 40\]"):
        Plan([Linear(View.of(x), weights, View.of(out)), Linear(View.of(x[:, 1:]), weights, View.of(out))])
    with pytest.raises(InputsError, match=r"out has the shape \[3, 19\], not \[3, 20\]"):
        Plan([Linear(View.of(x), weights, View.of(out[:, 1:]))])
    with pytest.raises(InputsError, match=r"x has the shape \[3, 40\], and out \[2, 20\]"):
        Plan([Linear(View.of(x), weights, View.of(out[1:]))])
    with pytest.raises(InputsError, match=r"the numbers of a row of x are 3 apart"):
        Plan([Linear(View.of(torch.randn(40, 3).T), weights, View.of(out))])
    with pytest.raises(InputsError, match=r"x is torch\.int64; it must be torch\.float32"):
        Plan([Linear(View.of(x.long()), weights, View.of(out))])
    with pytest.raises(InputsError, match=r"residual has the shape \[3, 40\]"):
        Plan([Linear(View.of(x), weights, View.of(out), residual=View.of(x))])
    with pytest.raises(InputsError, match=r"the norm's weight has the shape \[20\], not \[40\]"):
        Plan([Linear(View.of(x), weights, View.of(out), norm=Norm(View.of(out[0]), None, 1e-5, True))])
    with pytest.raises(InputsError, match=r"out has 20 columns, and a matrix of 20 outputs, interleaved, gives 10"):
        Plan([Gated(View.of(x), weights, View.of(out), Activation.SILU)])
