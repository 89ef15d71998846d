"""What the rewriting techniques share."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import Workload, examine
from whet.techniques.rewriting.graph import trace_original, without_tf32


def test_products_are_compared_without_tf32_and_the_settings_come_back() -> None:
    """On an NVIDIA GPU a folded batch norm differs by 1e-3 in TF32: it would always be refused as wrong."""
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.backends.cudnn.allow_tf32
        with without_tf32():
            assert not torch.backends.cudnn.allow_tf32
            assert torch.backends.cudnn.conv.fp32_precision != "tf32"
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_settings_that_the_user_has_mixed_are_left_alone() -> None:
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # and recurrent layers stay in TF32: torch tells no common word
    try:
        with without_tf32():
            assert torch.backends.cudnn.rnn.fp32_precision == "tf32"
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    finally:
        torch.backends.cudnn.allow_tf32 = True


class ReadsTheBiasApart(nn.Module):
    """A product without the bias of its layer, which another operator reads, as in the scan of a state-space model."""

    def __init__(self, *, swaps: bool) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.swaps = swaps

    def forward(self, x: Tensor) -> Tensor:
        bias = self.other.bias if self.swaps else None
        return F.linear(x, self.layer.weight, bias) * F.softplus(self.layer.bias) + self.other(x)


@pytest.mark.parametrize("swaps", [False, True])
def test_a_bias_that_something_else_reads_stays_what_it_was(swaps: bool) -> None:
    torch.manual_seed(0)
    model, x = ReadsTheBiasApart(swaps=swaps).eval(), torch.randn(3, 6)
    traced = trace_original(examine(Workload(model=model, inputs=[x])))
    assert sum(isinstance(module, nn.Linear) for module in traced.modules()) == 2
    (found,) = traced(x)
    torch.testing.assert_close(found, model(x))
