"""Channels that are gone: dead ones change nothing, dependent ones go together, the outputs keep their shape."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.errors import TargetError
from whet.models.resnet import ResNet
from whet.techniques.mechanisms.pruning.channels import with_fewer_channels, with_share_of_work
from whet.techniques.mechanisms.pruning.cost import cost_of

pytest.importorskip("torch_pruning")


def small_resnet() -> ResNet:
    torch.manual_seed(0)
    return ResNet(widths=(16, 32), depths=(1, 1)).eval()


def call(model: nn.Module) -> Tensor:
    found: Tensor = model(torch.linspace(-1, 1, 2 * 16 * 16).reshape(2, 1, 16, 16))
    return found


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(F.relu(self.first(x)))
        out: Tensor = self.head(F.relu(x).mean((2, 3)))
        return out


def test_dead_channels_go_and_the_outputs_stay() -> None:
    """Half of the channels are zero: exactly they go, so that the outputs are those of before."""
    torch.manual_seed(0)
    model = Plain().eval()
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.weight[::2], layer.bias[::2] = 0, 0
        model.second.weight[:, ::2] = 0
        model.head.weight[:, ::2] = 0
    small = with_fewer_channels(model, call, 0.5)
    assert small.first.out_channels == small.second.out_channels == 8
    with torch.no_grad():
        torch.testing.assert_close(call(small), call(model), rtol=1e-5, atol=1e-6)


def test_residual_connections_and_outputs_are_respected() -> None:
    model = small_resnet()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    small = with_fewer_channels(model, call, 0.5)
    assert call(small).shape == (2, 10)
    assert small.head.out_features == 10
    block = small.stages[0][0]
    assert block.conv2.out_channels == small.stem[0].out_channels, "what is added has as many channels"
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in small.parameters())


def test_a_share_of_the_operations_is_left() -> None:
    model = small_resnet()
    small = with_share_of_work(model, call, 0.5)
    before, after = cost_of(model, call), cost_of(small, call)
    assert after.flops <= 0.5 * before.flops
    assert after.num_parameters < before.num_parameters
    with pytest.raises(TargetError, match="no cut of its channels"):
        with_share_of_work(model, call, 1e-4)


def test_nothing_to_cut_is_said() -> None:
    with pytest.raises(TargetError, match="no channels that can go"):
        with_fewer_channels(nn.Sequential(nn.Flatten(), nn.Linear(256, 4)), call, 0.5)
