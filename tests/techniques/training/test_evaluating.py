"""A model in evaluation mode for a while is afterwards what it was before."""

from typing import Self

import torch
from torch import nn

from whet.techniques.mechanisms.evaluating import evaluating


class Merging(nn.Linear):
    """A layer that adds an update to its weight for evaluation, as LoRA's layers do, and takes it away for training."""

    is_merged = False

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.is_merged is mode:
            self.weight.data += -1.0 if mode else 1.0
            self.is_merged = not mode
        return self


def test_modules_that_change_with_their_mode_change_back() -> None:
    model = nn.Sequential(Merging(2, 2), nn.Dropout())
    before = model[0].weight.detach().clone()
    with evaluating(model):
        assert not model.training and not model[1].training
        torch.testing.assert_close(model[0].weight.detach(), before + 1)
    torch.testing.assert_close(model[0].weight.detach(), before)
    assert model.training and model[0].training


def test_each_module_keeps_its_own_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with evaluating(model):
        assert not model[0].training
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
