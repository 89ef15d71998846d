"""Hints at what a workload's batches do not show: masks that hide nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.core.workload import Workload, examine, unseen_inputs

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    """Hand-written attention: what the mask hides counts nothing."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x * mask).sum(-1) if mask.is_floating_point() else x.masked_fill(~mask.bool(), 0).sum(-1)


class Padded(nn.Module):
    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        return x.masked_fill(key_padding_mask, 0).sum(-1)


class Plain(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def hints(model: nn.Module, *batches: Any) -> tuple[str, ...]:
    workload = Workload(model=model.eval(), inputs=[batches[0]], calibration=list(batches))
    return unseen_inputs(examine(workload, with_behaviour=False))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_mask_of_ones_is_named(dtype: torch.dtype, by_name: bool) -> None:
    ones = torch.ones(2, 4, dtype=dtype)
    batch: Any = {"x": X, "mask": ones} if by_name else (X, ones)
    (said,) = hints(Masked(), batch, batch)
    assert said.startswith("mask keeps every place in every batch, so padding is neither calibrated nor judged")
    assert "calibration batches" in said
    some = ones.clone()
    some[0, 2:] = 0
    other: Any = {"x": X, "mask": some} if by_name else (X, some)
    assert hints(Masked(), batch, other) == ()


def test_a_mask_that_hides_where_it_is_true_is_named() -> None:
    (said,) = hints(Padded(), (X, torch.zeros(2, 4, dtype=torch.bool)))
    assert said.startswith("key_padding_mask keeps every place")


def test_ones_that_are_no_mask_are_none() -> None:
    assert hints(Plain(), (X, torch.ones(2, 4))) == ()
    assert hints(Plain(), (X, torch.zeros(2, 4, dtype=torch.long))) == ()
    assert hints(nn.ReLU(), torch.ones(2, 4)) == (), "an input alone is no mask"
    assert len(hints(Plain(), (X, torch.ones(2, 4, dtype=torch.long)))) == 1, "whole numbers of 1 everywhere may be one"
