"""Folded batch norms equal the formula in float64, and are folded only where that is right."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.techniques.rewriting.graph import relative_error
from whet.techniques.structure import fuse_conv_bn
from whet.techniques.technique import Applies, Candidate, NoOptions, NotApplicable

OPTIONS = NoOptions()


def _with_statistics(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
    return model.eval()


def _num_norms(module: nn.Module) -> int:
    return sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


CASES = {
    "conv1d": (nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5)), torch.randn(2, 3, 9)),
    "conv2d": (
        nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), nn.BatchNorm2d(6)),
        torch.randn(2, 4, 9, 9),
    ),
    "conv2d_same": (
        nn.Sequential(nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6, affine=False)),
        torch.randn(2, 4, 9, 9),
    ),
    "conv3d": (nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4)), torch.randn(2, 2, 5, 5, 5)),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2), nn.BatchNorm2d(6)), torch.randn(2, 4, 5, 5)),
    "linear": (nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()), torch.randn(3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_float64(name, examined_of, machine) -> None:
    model, x = CASES[name]
    model = _with_statistics(copy.deepcopy(model))
    examined = examined_of(model, x)
    assert fuse_conv_bn.check(examined, machine, OPTIONS) == Applies("1 batch norms")
    tuned = fuse_conv_bn.apply(Candidate.original(examined), OPTIONS)
    wanted = copy.deepcopy(model).double()(x.double())
    assert _num_norms(tuned.module) == 0
    assert _num_norms(model) == 1
    assert relative_error(tuned.call(x), [wanted]) < 1e-5


def test_folds_by_hand(examined_of) -> None:
    """One channel, numbers that can be checked on paper: y = (3x + 1 - 5) / sqrt(4) * 2 + 7 = 3x + 3."""
    conv, norm = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, eps=0.0)
    for parameter, number in ((conv.weight, 3), (conv.bias, 1), (norm.weight, 2), (norm.bias, 7)):
        nn.init.constant_(parameter, number)
    nn.init.constant_(norm.running_mean, 5)
    nn.init.constant_(norm.running_var, 4)
    examined = examined_of(nn.Sequential(conv, norm), torch.ones(1, 1, 1, 1))
    folded = fuse_conv_bn.apply(Candidate.original(examined), OPTIONS).module.model[0]
    assert folded.weight.item() == pytest.approx(3)
    assert folded.bias.item() == pytest.approx(3)


class Read(nn.Module):
    """The convolution's own output is needed too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y + self.norm(y)


class Shared(Read):
    """One batch norm after two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.other(F.relu(self.norm(self.conv(x)))))


class Tokens(nn.Module):
    """After a linear layer on three dimensions, the batch norm's channels are the tokens, not the features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(2, 4), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Read(), torch.randn(1, 2, 3, 3)),
        (Shared(), torch.randn(1, 2, 3, 3)),
        (Tokens(), torch.randn(2, 3, 2)),
        (nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(), nn.BatchNorm2d(2)), torch.randn(1, 2, 3, 3)),
    ],
    ids=["read", "shared", "tokens", "relu_between"],
)
def test_refuses_what_would_change(model, x, examined_of, machine) -> None:
    verdict = fuse_conv_bn.check(examined_of(_with_statistics(model), x), machine, OPTIONS)
    assert verdict == NotApplicable("no batch norm directly follows a convolution")


class Activated(nn.BatchNorm2d):
    """A batch norm that does more, as some model libraries have."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


def test_leaves_subclasses_alone(examined_of) -> None:
    model = _with_statistics(nn.Sequential(nn.Conv2d(2, 4, 1), Activated(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))
    x = torch.randn(1, 2, 3, 3)
    examined = examined_of(model, x)
    tuned = fuse_conv_bn.apply(Candidate.original(examined), OPTIONS)
    assert _num_norms(tuned.module) == 1
    assert relative_error(tuned.call(x), examined.outputs[0]) < 1e-5


def test_reference_resnet(examined_of) -> None:
    models = pytest.importorskip("whet.models.resnet")
    model = _with_statistics(models.ResNet(widths=(8, 16), depths=(1, 1)))
    x = torch.randn(2, 1, 16, 16)
    examined = examined_of(model, x)
    tuned = fuse_conv_bn.apply(Candidate.original(examined), OPTIONS)
    assert _num_norms(tuned.module) == 0
    assert relative_error(tuned.call(x), [copy.deepcopy(model).double()(x.double())]) < 1e-5
