"""The gated MLP, against torch in float64 and against its own parts."""

import pytest
import torch

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.gated_mlp import gated_mlp, pack_mlp
from whet.kernels.linear import linear, pack_weights
from whet.kernels.linear.layout import Kind

SHAPES = [(1, 32, 64, 32), (1, 1, 1, 1), (3, 45, 33, 17), (9, 40, 50, 30), (40, 96, 200, 96)]  # M, K, I, N
KINDS = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)


def matrices(K: int, I: int, N: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # noqa: E741
    return torch.randn(I, K) / K**0.5, torch.randn(I, K) / K**0.5, torch.randn(N, I) / I**0.5


@pytest.mark.parametrize("has_bias", [False, True])
def test_float32_is_torchs_own(backend: str, has_bias: bool) -> None:
    for M, K, I, N in SHAPES:  # noqa: E741
        x_MK, (gate, up, down) = torch.randn(M, K), matrices(K, I, N)
        biases = (torch.randn(I), torch.randn(I), torch.randn(N)) if has_bias else (None, None, None)
        y_MN = gated_mlp(x_MK, pack_mlp(gate, up, down, Kind.F32, *biases))
        g, u, d = (None if bias is None else bias.double() for bias in biases)
        linear64 = torch.nn.functional.linear
        hidden = torch.nn.functional.silu(linear64(x_MK.double(), gate.double(), g)) * linear64(
            x_MK.double(), up.double(), u
        )
        wanted = linear64(hidden, down.double(), d)
        torch.testing.assert_close(
            y_MN.double(), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max() + hidden.abs().max())
        )


@KINDS
def test_is_its_parts_one_after_the_other(backend: str, kind: Kind) -> None:
    for M, K, I, N in SHAPES:  # noqa: E741
        x_MK, (gate, up, down) = torch.randn(M, K), matrices(K, I, N)
        biases = torch.randn(I), torch.randn(I), torch.randn(N)
        y_MN = gated_mlp(x_MK, pack_mlp(gate, up, down, kind, *biases))
        gate_MI = linear(x_MK, pack_weights(gate, kind, biases[0])).double()
        up_MI = linear(x_MK, pack_weights(up, kind, biases[1])).double()
        hidden_MI = (torch.nn.functional.silu(gate_MI) * up_MI).float()
        wanted = linear(hidden_MI, pack_weights(down, kind, biases[2]))
        torch.testing.assert_close(y_MN, wanted, rtol=0, atol=float(wanted.abs().max()) * 1e-5)


@KINDS
def test_a_row_does_not_depend_on_its_company(kernels: Library, kind: Kind) -> None:
    x_MK, weights = torch.randn(50, 40), pack_mlp(*matrices(40, 70, 30), kind)
    assert torch.equal(gated_mlp(x_MK, weights), torch.cat([gated_mlp(row[None], weights) for row in x_MK]))


def test_large_gates_neither_overflow_nor_vanish(backend: str) -> None:
    """silu(x) is x far above zero and 0 far below it."""
    gate = torch.tensor([[1.0], [-1.0]])
    weights = pack_mlp(gate, torch.ones(2, 1), torch.eye(2), Kind.F32)
    x = torch.tensor([[1e4], [200.0], [89.0], [1e-20]])
    torch.testing.assert_close(gated_mlp(x, weights)[:3, 0], x[:3, 0] ** 2)
    assert gated_mlp(x, weights)[:, 1].abs().max() < 1e-30


def test_keeps_the_type_and_the_leading_dimensions(backend: str) -> None:
    x, weights = torch.randn(2, 3, 40).bfloat16(), pack_mlp(*matrices(40, 50, 30), Kind.S8)
    y = gated_mlp(x, weights)
    assert (y.dtype, y.shape) == (torch.bfloat16, (2, 3, 30))
    assert torch.equal(y.flatten(0, 1), gated_mlp(x.float().flatten(0, 1), weights).bfloat16())


@KINDS
def test_is_an_operator_of_torch(kernels: Library, kind: Kind) -> None:
    weights = pack_mlp(*matrices(40, 50, 30), kind, torch.randn(50), torch.randn(50), torch.randn(30))
    gate_up, down = weights.gate_up, weights.down
    tensors = (gate_up.data, gate_up.scale, gate_up.bias, down.data, down.scale, down.bias)
    torch.library.opcheck(torch.ops.whet.gated_mlp.default, (torch.randn(3, 40), *tensors, int(kind), 50, 30))


def test_what_does_not_fit_is_refused(backend: str) -> None:
    gate, up, down = matrices(40, 50, 30)
    with pytest.raises(InputsError, match="are no gated MLP"):
        pack_mlp(gate, up[:49], down, Kind.S8)
    with pytest.raises(InputsError, match="are no gated MLP"):
        pack_mlp(gate, up, down[:, :49], Kind.S8)
    with pytest.raises(InputsError, match="are no gated MLP"):
        pack_mlp(gate, up, down, Kind.S8, torch.zeros(50))
    with pytest.raises(InputsError, match="for 41 inputs"):
        gated_mlp(torch.randn(3, 41), pack_mlp(gate, up, down, Kind.S8))
