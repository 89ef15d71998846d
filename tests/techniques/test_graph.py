"""What the rewriting techniques share."""

import torch

from whet.rewriting.graph import without_tf32


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
