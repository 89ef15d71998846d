"""Weights in 4 bits: numerics against float64, sizes on disk, and files that only fit the chip they were made for."""

import json

import pytest
import torch
from safetensors.torch import save_file
from small_models import SUBJECTS
from torch import nn

from whet.artefact import MANIFEST, load
from whet.artefact import inductor as runtimes
from whet.errors import ArtefactError, OptionError
from whet.files import size_bytes
from whet.quantisation.quantised_linear import Int4Linear, quantise_groups
from whet.rewriting.graph import relative_error
from whet.technique import Candidate, Refused
from whet.techniques.backend import inductor
from whet.techniques.precision import int4_weight


def applied(subject, group_size=32, rest="float32") -> Candidate:
    return int4_weight.apply(Candidate.original(subject), int4_weight.Options(group_size=group_size, rest=rest))


def decoded(weight, group_size):
    levels, scale, offset = quantise_groups(weight, group_size)
    assert levels.dtype == torch.uint8
    assert levels.max() <= 15
    spread = [t.double().repeat_interleave(group_size, dim=1) for t in (scale, offset)]
    return (levels.double() - 8) * spread[0] + spread[1]


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_a_layer_is_its_rounded_weights_in_float64(num_rows, group_size) -> None:
    layer = nn.Linear(256, 48)
    x = torch.randn(num_rows, 256)
    found = Int4Linear(layer, num_rows, group_size)(x)
    weight = decoded(layer.weight.detach(), group_size)
    expected = x.double() @ weight.T + layer.bias.detach().double()
    assert relative_error((found,), (expected,)) < 0.02  # the product is in bfloat16
    assert 0.01 < relative_error((weight,), (layer.weight.detach().double(),)) < 0.15


def test_ranges_are_chosen_for_the_least_error() -> None:
    """No worse than covering every value, by numpy's kind of rounding, in any group."""
    weight = torch.randn(64, 512)
    groups = weight.unflatten(1, (-1, 64)).double()
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low) / 15
    plain = ((groups - low) / scale).round() * scale + low
    ours = decoded(weight, 64).unflatten(1, (-1, 64))
    plain_error = (plain - groups).square().sum(-1)
    our_error = (ours - groups).square().sum(-1)
    assert (our_error <= plain_error * 1.05).all()  # scales in bfloat16 cost a little
    assert our_error.mean() < 0.97 * plain_error.mean()


@pytest.mark.parametrize("weight", [torch.zeros(16, 64), torch.full((16, 64), 3.0)], ids=["zeros", "constant"])
def test_groups_without_a_range(weight) -> None:
    assert torch.allclose(decoded(weight, 32), weight.double(), rtol=1e-2, atol=1e-6)


def test_layers_that_do_not_fit_stay_and_are_named(subject_of) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64), nn.Linear(64, 7))
    tuned = applied(subject_of(model, torch.randn(2, 64)), group_size=64)
    assert [type(m) for m in tuned.module.module.model] == [Int4Linear, nn.Linear, Int4Linear]
    assert tuned.notes == ("int4_weight: 1 of the layers stay in float, as their sizes don't fit (model.1, ...)",)


def test_outputs_of_any_number(subject_of) -> None:
    """torch's kernel takes multiples of 16."""
    for num_outputs in (1, 7, 16, 40):
        layer = nn.Linear(64, num_outputs)
        subject = subject_of(layer, torch.randn(2, 64))
        assert relative_error(applied(subject).call(*subject.flat_inputs[0]), subject.outputs[0]) < 0.25


def test_check(machine, subject_of) -> None:
    subject = SUBJECTS["encoder"]()
    assert int4_weight.check(subject, machine, int4_weight.Options(group_size=128)).detail == "1 of 7 linear layers"
    with pytest.raises(OptionError, match="32, 64, 128"):
        int4_weight.check(subject, machine, int4_weight.Options(group_size=48))
    narrow = subject_of(nn.Linear(20, 20), torch.randn(2, 20))
    assert int4_weight.check(narrow, machine, int4_weight.Options()) == Refused(
        "no linear layer has inputs in groups of 32"
    )


@pytest.mark.parametrize("num_rows", [1, 16])
def test_a_sixth_of_the_size_on_disk(subject_of, tmp_path, num_rows) -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()
    subject = subject_of(model, torch.randn(num_rows, 512))
    save_file(dict(model.state_dict()), tmp_path / "original.safetensors")
    tuned = applied(subject, group_size=64)
    directory = tuned.save(tmp_path / "artefact")
    assert size_bytes(directory) < size_bytes(tmp_path / "original.safetensors") / 6
    torch.testing.assert_close(load(directory).run(*subject.flat_inputs[0]), tuned.call(*subject.flat_inputs[0]))


def test_packed_weights_are_refused_on_another_kind_of_chip(subject_of, tmp_path) -> None:
    """Each chip's kernel wants them in another order; the wrong one would give wrong numbers, silently."""
    few = applied(subject_of(nn.Linear(64, 32), torch.randn(1, 64))).save(tmp_path / "few")
    path = few / MANIFEST
    manifest = json.loads(path.read_text())
    assert manifest["settings"] == {"cpu_capability": torch.backends.cpu.get_cpu_capability()}
    manifest["settings"]["cpu_capability"] = "SVE256"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match=r"packed for SVE256, and this machine has .*`whet apply`"):
        load(few)
    many = applied(subject_of(nn.Linear(64, 32), torch.randn(99, 64)), rest="bfloat16").save(tmp_path / "many")
    assert json.loads((many / MANIFEST).read_text())["settings"] == {}


def test_packed_weights_are_found_inside_autocast(subject_of, tmp_path) -> None:
    directory = applied(subject_of(nn.Linear(64, 32), torch.randn(1, 64)), rest="bfloat16").save(tmp_path / "few")
    assert "cpu_capability" in json.loads((directory / MANIFEST).read_text())["settings"]


@pytest.mark.skipif(bool(runtimes.missing_tools(at_load=False)), reason="no C++ compiler")
def test_compiled_it_stays_in_4_bits(subject_of, tmp_path) -> None:
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).eval()
    subject = subject_of(model, torch.randn(64, 1024))
    tuned = applied(subject, group_size=64)
    compiled = inductor.apply(tuned, inductor.Options())
    batch = subject.flat_inputs[0]
    assert relative_error(compiled.call(*batch), tuned.call(*batch)) < 0.02
    num_bytes = size_bytes(compiled.save(tmp_path / "artefact"))
    assert num_bytes < 2.25 * 1024**2 + 1.5 * 1024**2  # 4.5 bits a weight, and a library around them
