"""Which layers are kept: the one that was made to be sensitive is found, and keeping it restores the outputs."""

import pytest
import torch
import torch.nn.functional as F
from small_models import EXAMINED
from torch import nn

from whet.errors import OptionError
from whet.techniques.precision import int8_dynamic, int8_static, keep_precision
from whet.techniques.quantisation.sensitivity import rank_layers, round_activation, round_weight
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Applies, Candidate, NotApplicable


class Planted(nn.Module):
    """Five equal layers; the input of the fourth has a channel of outliers, whose weights are small to match."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.register_buffer("gain", torch.ones(64))
        self.gain[7] = 3000.0
        with torch.no_grad():
            self.layers[3].weight[:, 7] = 1e-6

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.gelu(layer(x * self.gain) if i == 3 else layer(x)) + 0.1 * x
        return x


@pytest.fixture
def planted(examined_of):
    return examined_of(Planted(), *(torch.randn(16, 64) for _ in range(3)))


def test_the_planted_layer_is_found_first(planted) -> None:
    module = Candidate.original(planted).module
    ranked = rank_layers(module, planted.flat_calibration)
    assert ranked[0][0] == "model.layers.3"
    assert {name for name, _ in ranked} == {f"model.layers.{i}" for i in range(5)}
    assert ranked[0][1] > 10 * ranked[1][1]
    assert [damage for _, damage in ranked] == sorted((damage for _, damage in ranked), reverse=True)


def test_ranking_leaves_the_model_as_it_was(planted) -> None:
    module = Candidate.original(planted).module
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    rank_layers(module, planted.flat_calibration)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(module(*planted.flat_inputs[0])[0], planted.outputs[0][0])
    assert not any(m._forward_pre_hooks for m in module.modules())


def test_damage_is_what_rounding_that_layer_alone_does(planted) -> None:
    """By hand, in float64, for the last layer: nothing comes after it but the activation."""
    model = planted.workload.model
    batch = planted.flat_calibration[0]
    seen = []
    handle = model.layers[4].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    wanted = model(*batch).detach().double()
    handle.remove()
    x, weight = seen[0].detach().double(), model.layers[4].weight.detach().double()
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = (high - low) / 255
    rounded_x = (torch.round(x / step + round(-low / step)).clamp(0, 255) - round(-low / step)) * step
    steps = weight.abs().amax(1, keepdim=True) / 127
    rounded_weight = torch.round(weight / steps) * steps
    found = F.gelu(rounded_x @ rounded_weight.T + model.layers[4].bias.double()).detach() + 0.1 * x
    expected = float((found - wanted).square().sum() / wanted.square().sum())
    ranked = dict(rank_layers(Candidate.original(planted).module, [batch]))
    assert ranked["model.layers.4"] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("technique", [int8_static, int8_dynamic])
def test_keeping_it_restores_the_outputs(planted, technique) -> None:
    def error(candidate) -> float:
        tuned = technique.apply(candidate, technique.Options(rest="float32"))
        return max(
            relative_error(tuned.call(*batch), expected)
            for batch, expected in zip(planted.flat_inputs, planted.outputs, strict=True)
        )

    original = Candidate.original(planted)
    kept = keep_precision.apply(original, keep_precision.Options(layers=1))
    assert kept.kept == {"model.layers.3"}
    assert kept.notes == ("keep_precision: model.layers.3 stay in float",)
    assert kept.module is original.module
    assert error(original) > 0.1
    assert error(kept) < 0.03


def test_names_are_found_behind_wrappers() -> None:
    candidate = Candidate(EXAMINED["encoder"](), nn.Identity(), kept=frozenset({"model.up"}))
    assert candidate.keeps("model.up")
    assert candidate.keeps("module.model.up")
    assert not candidate.keeps("model.up.proj")
    assert not candidate.keeps("model.follow_up")
    assert not Candidate(candidate.examined, nn.Identity()).keeps("model.up")


def test_convolutions_are_ranked_too() -> None:
    examined = EXAMINED["conv_net"]()
    names = [name for name, _ in rank_layers(Candidate.original(examined).module, examined.flat_calibration)]
    assert sorted(names) == ["model.conv1", "model.head", "model.stem.0"]


def test_check(machine, examined_of) -> None:
    assert keep_precision.check(EXAMINED["encoder"](), machine, keep_precision.Options(layers=4)) == Applies(
        "4 of 7 layers stay in float"
    )
    all_of_them = keep_precision.check(EXAMINED["conv_net"](), machine, keep_precision.Options(layers=4))
    assert all_of_them == NotApplicable("the model has 3 layers to quantise; keeping 4 would leave none")
    none = keep_precision.check(examined_of(nn.LayerNorm(8), torch.randn(2, 8)), machine, keep_precision.Options())
    assert isinstance(none, NotApplicable)
    with pytest.raises(OptionError, match="at least 1"):
        keep_precision.check(EXAMINED["encoder"](), machine, keep_precision.Options(layers=0))


def test_rounding_of_odd_tensors() -> None:
    assert torch.equal(round_activation(torch.zeros(3, 4)), torch.zeros(3, 4))
    assert round_activation(torch.empty(0, 4)).shape == (0, 4)
    assert torch.equal(round_activation(torch.tensor([1, 2])), torch.tensor([1, 2]))
    assert torch.equal(round_weight(torch.zeros(3, 4)), torch.zeros(3, 4))
