"""Weights in 4 bits: numerics against float64, sizes on disk, and files that only fit the chip they were made for."""

import json

import pytest
import torch
from safetensors.torch import save_file
from small_models import EXAMINED
from torch import nn

from whet.core.artefact import MANIFEST, load
from whet.core.artefact import inductor as runtimes
from whet.errors import ArtefactError, OptionError
from whet.files import size_bytes
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.quantise import quantise_int4
from whet.techniques.backend import inductor
from whet.techniques.precision import int4_weight
from whet.techniques.quantisation import quantised_linear
from whet.techniques.quantisation.quantised_linear import Int4Linear, PackedLinear
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Candidate, NotApplicable


def applied(examined, group_size=32, rest="float32") -> Candidate:
    return int4_weight.apply(Candidate.original(examined), int4_weight.Options(group_size=group_size, rest=rest))


@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_layer_is_its_rounded_weights_in_float64(num_rows, is_packed) -> None:
    layer = nn.Linear(256, 48)
    x = torch.randn(num_rows, 256)
    found = (PackedLinear(layer, Kind.S4) if is_packed else Int4Linear(layer, num_rows))(x)
    weight = quantise_int4(layer.weight.detach()).dequantise().double()
    expected = x.double() @ weight.T + layer.bias.detach().double()
    assert relative_error((found,), (expected,)) < 0.02  # the product is in bfloat16, or of 8-bit activations
    assert 0.01 < relative_error((weight,), (layer.weight.detach().double(),)) < 0.15


@pytest.mark.parametrize("num_rows", [2, 30])
def test_the_weights_are_the_same_in_every_way(num_rows) -> None:
    """Rows of the unit matrix read the weights; what is left is the rounding of one product in float32."""
    layer = nn.Linear(64, 48, bias=False)
    wanted = quantise_int4(layer.weight.detach()).dequantise()
    for quantised in (PackedLinear(layer, Kind.S4), Int4Linear(layer, num_rows)):
        torch.testing.assert_close(quantised(torch.eye(64)).T, wanted, rtol=2e-7, atol=0)


def test_large_layers_of_few_rows_are_whets(monkeypatch) -> None:
    monkeypatch.setattr(quantised_linear, "_LARGE_INT4", 64 * 64)
    monkeypatch.setattr(quantised_linear, "_suits_whet", lambda num_rows: num_rows == 1)
    small, large = nn.Linear(64, 63), nn.Linear(64, 64)
    ways = [type(quantised_linear.int4_linear(*given)) for given in ((small, 1), (large, 1), (large, 2))]
    assert ways == [Int4Linear, PackedLinear, Int4Linear]


@pytest.mark.parametrize("group_size", [64, 128])
def test_recipes_that_name_other_groups_are_followed(examined_of, group_size) -> None:
    examined = examined_of(nn.Linear(128, 16), torch.randn(2, 128))
    tuned, plain = applied(examined, group_size=group_size), applied(examined)
    assert tuned.notes == (f"int4_weight: group_size={group_size} is ignored, groups have 32 inputs",)
    assert torch.equal(*(candidate.call(*examined.flat_inputs[0])[0] for candidate in (tuned, plain)))


def test_layers_that_do_not_fit_stay_and_are_named(examined_of) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64), nn.Linear(64, 7))
    tuned = applied(examined_of(model, torch.randn(2, 64)))
    assert [type(m) for m in tuned.module.module.model] == [Int4Linear, nn.Linear, Int4Linear]
    assert tuned.notes == ("int4_weight: 1 of the layers stay in float, as their sizes don't fit (model.1, ...)",)


def test_outputs_of_any_number(examined_of) -> None:
    """torch's kernel takes multiples of 16."""
    for num_outputs in (1, 7, 16, 40):
        layer = nn.Linear(64, num_outputs)
        examined = examined_of(layer, torch.randn(2, 64))
        assert relative_error(applied(examined).call(*examined.flat_inputs[0]), examined.outputs[0]) < 0.25


def test_check(machine, examined_of) -> None:
    examined = EXAMINED["encoder"]()
    assert int4_weight.check(examined, machine, int4_weight.Options()).detail == "7 of 7 linear layers"
    with pytest.raises(OptionError, match="32, 64, 128"):
        int4_weight.check(examined, machine, int4_weight.Options(group_size=48))
    narrow = examined_of(nn.Linear(20, 20), torch.randn(2, 20))
    assert int4_weight.check(narrow, machine, int4_weight.Options()) == NotApplicable(
        "no linear layer has inputs in groups of 32"
    )


@pytest.mark.parametrize("num_rows", [1, 16])
def test_a_sixth_of_the_size_on_disk(examined_of, tmp_path, num_rows) -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()
    examined = examined_of(model, torch.randn(num_rows, 512))
    save_file(dict(model.state_dict()), tmp_path / "original.safetensors")
    tuned = applied(examined)
    directory = tuned.save(tmp_path / "artefact")
    assert size_bytes(directory) < size_bytes(tmp_path / "original.safetensors") / 6
    torch.testing.assert_close(load(directory).run(*examined.flat_inputs[0]), tuned.call(*examined.flat_inputs[0]))


def test_packed_weights_are_refused_on_another_kind_of_chip(examined_of, tmp_path) -> None:
    """Each chip's kernel wants them in another order; the wrong one would give wrong numbers, silently."""
    few = applied(examined_of(nn.Linear(64, 32), torch.randn(1, 64))).save(tmp_path / "few")
    path = few / MANIFEST
    manifest = json.loads(path.read_text())
    assert manifest["settings"] == {"cpu_capability": torch.backends.cpu.get_cpu_capability()}
    manifest["settings"]["cpu_capability"] = "SVE256"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match=r"packed for SVE256, and this machine has .*`whet apply`"):
        load(few)
    many = applied(examined_of(nn.Linear(64, 32), torch.randn(99, 64)), rest="bfloat16").save(tmp_path / "many")
    assert json.loads((many / MANIFEST).read_text())["settings"] == {}


def test_packed_weights_are_found_inside_autocast(examined_of, tmp_path) -> None:
    directory = applied(examined_of(nn.Linear(64, 32), torch.randn(1, 64)), rest="bfloat16").save(tmp_path / "few")
    assert "cpu_capability" in json.loads((directory / MANIFEST).read_text())["settings"]


@pytest.mark.skipif(bool(runtimes.missing_tools(at_load=False)), reason="no C++ compiler")
def test_compiled_it_stays_in_4_bits(examined_of, tmp_path) -> None:
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).eval()
    examined = examined_of(model, torch.randn(64, 1024))
    tuned = applied(examined)
    compiled = inductor.apply(tuned, inductor.Options())
    batch = examined.flat_inputs[0]
    assert relative_error(compiled.call(*batch), tuned.call(*batch)) < 0.02
    num_bytes = size_bytes(compiled.save(tmp_path / "artefact"))
    assert num_bytes < 2.25 * 1024**2 + 1.5 * 1024**2  # 4.5 bits a weight, and a library around them
