"""Weights in int8: numerics against float64, sizes on disk, and models that use their layers in odd ways."""

import copy
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import EXAMINED
from torch import nn

from processors import HAS_BFLOAT16
from whet.core.artefact import inductor as runtimes
from whet.core.artefact import load
from whet.core.artefact.operators import libraries_of
from whet.errors import TargetError
from whet.files import size_bytes
from whet.kernels import dispatch
from whet.kernels.build import Isa, Library
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.quantise import quantise_int8
from whet.techniques.backend import inductor
from whet.techniques.precision import int8_weight
from whet.techniques.quantisation import quantised_linear
from whet.techniques.quantisation.quantised_linear import FEW_ROWS, Int8Embedding, Int8Linear, PackedLinear
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Applies, Candidate

PLAIN = int8_weight.Options(rest="float32")


def applied(examined, options=PLAIN) -> Candidate:
    return int8_weight.apply(Candidate.original(examined), options)


@pytest.fixture
def whets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of few rows use whet's operator, on any processor and without a compiler."""
    monkeypatch.setattr(quantised_linear, "_suits_whet", lambda num_rows: num_rows <= FEW_ROWS)


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No layer does."""
    monkeypatch.setattr(quantised_linear, "_suits_whet", lambda num_rows: False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (2, 4, 16), (3, 5, 7, 64), (200, 33), (64,), (1, 3), (8, 40)], ids=str)
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_layer_is_its_rounded_weights_in_float64(shape, bias, is_packed) -> None:
    layer = nn.Linear(shape[-1], 24, bias=bias)
    x = torch.randn(shape)
    num_rows = x.numel() // shape[-1]
    quantised = PackedLinear(layer, Kind.S8) if is_packed else Int8Linear(layer, num_rows)
    if not is_packed:
        assert quantised.has_few_rows == (num_rows <= FEW_ROWS and shape[-1] % 16 == 0)
    weight = quantise_int8(layer.weight.detach()).dequantise().double()
    expected = x.double() @ weight.T + (0 if layer.bias is None else layer.bias.detach().double())
    found = quantised(x)
    assert (found.dtype, found.shape) == (torch.float32, expected.shape)
    assert relative_error((found,), (expected,)) < 0.02  # the product is in bfloat16, or of 8-bit activations
    assert relative_error((weight,), (layer.weight.detach().double(),)) < 1 / 127 * 0.51


@pytest.mark.parametrize("num_rows", [2, 30])
def test_the_weights_are_the_same_in_every_way(num_rows) -> None:
    """Rows of the unit matrix read the weights; what is left is the rounding of one product in float32."""
    layer = nn.Linear(32, 48, bias=False)
    wanted = quantise_int8(layer.weight.detach()).dequantise()
    for quantised in (PackedLinear(layer, Kind.S8), Int8Linear(layer, num_rows)):
        torch.testing.assert_close(quantised(torch.eye(32)).T, wanted, rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", [Kind.S8, Kind.S4])
def test_a_packed_layer_can_be_copied(kind) -> None:
    """As techniques do that come after, such as channels_last."""
    layer, x = PackedLinear(nn.Linear(32, 48), kind), torch.randn(2, 32)
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x), rtol=0, atol=0)


def test_inputs_out_of_order() -> None:
    layer = nn.Linear(16, 8)
    x = torch.randn(1, 16, 4).mT
    for quantised in (Int8Linear(layer, 4), Int8Linear(layer, 99), PackedLinear(layer, Kind.S8)):
        assert relative_error((quantised(x),), (layer(x),)) < 0.02


def test_few_rows_are_whets_where_its_kernels_were_measured(monkeypatch) -> None:
    layer = nn.Linear(64, 64)
    known = (Isa.AVX512, PackedLinear), (Isa.AVX512_VNNI, PackedLinear), (Isa.AVX2, Int8Linear), (None, Int8Linear)
    for isa, wanted in known:
        found = None if isa is None else Library(None, isa)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "kernels", lambda found=found: found)
            chosen = [quantised_linear._suits_whet(num_rows) for num_rows in (1, FEW_ROWS, FEW_ROWS + 1)]
        assert chosen == [wanted is PackedLinear, wanted is PackedLinear, False]
    with monkeypatch.context() as patch:
        patch.setattr(quantised_linear, "_suits_whet", lambda num_rows: True)
        assert type(quantised_linear.int8_linear(layer, 1)) is PackedLinear


def test_an_artefact_with_whets_operator_loads_with_nothing_named(whets, examined_of, tmp_path) -> None:
    """In a fresh process, with the kernels and without a compiler: the same values."""
    model = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    examined = examined_of(model, torch.randn(3, 96))
    tuned = applied(examined)
    assert [type(m) for m in tuned.module.module.model] == [PackedLinear, nn.ReLU, PackedLinear]
    directory = tuned.save(tmp_path / "artefact")
    assert libraries_of(load(directory).manifest.operators) == []
    (expected,) = tuned.call(*examined.flat_inputs[0])
    save_file({"x": examined.flat_inputs[0][0]}, tmp_path / "x")
    code = (
        "import sys, torch, whet; from safetensors.torch import load_file, save_file\n"
        "y = whet.load(sys.argv[1]).run(load_file(sys.argv[2])['x'])[0]; save_file({'y': y}, sys.argv[3])"
    )
    for kernels in ("", "off"):
        command = [sys.executable, "-W", "ignore", "-c", code, directory, tmp_path / "x", tmp_path / "y"]
        subprocess.run(command, env={**os.environ, "WHET_KERNELS": kernels}, check=True)
        torch.testing.assert_close(load_file(tmp_path / "y")["y"], expected, rtol=1e-5, atol=1e-6)


def test_traced_where_torch_predicts_other_strides(examined_of, tmp_path) -> None:
    """After a bfloat16 convolution a traced graph believes in an order that is not there."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.layer = nn.Conv2d(3, 32, 4, 4), nn.Linear(32, 16)

        def forward(self, x):
            return self.layer(torch.nn.functional.gelu(self.patch(x).flatten(2).transpose(1, 2)))

    examined = examined_of(Patches(), torch.randn(1, 3, 8, 8))
    tuned = applied(examined, int8_weight.Options(rest="bfloat16"))
    found = load(tuned.save(tmp_path / "artefact")).run(*examined.flat_inputs[0])
    assert relative_error(found, examined.outputs[0]) < 0.05


def test_rows_of_nothing_but_zeros() -> None:
    weights = quantise_int8(torch.zeros(4, 8))
    assert not weights.values_NK.any()
    assert torch.isfinite(weights.scale_N).all()


def test_an_embedding_rounds_each_row_by_its_own_scale() -> None:
    table = nn.Embedding(10, 16)
    with torch.no_grad():
        table.weight[3] *= 1000.0
    ids = torch.tensor([[0, 3], [9, 3]])
    found, wanted = Int8Embedding(table)(ids), table(ids).detach()
    assert found.dtype == torch.float32
    for row, expected in zip(found.flatten(0, 1), wanted.flatten(0, 1), strict=True):
        assert float((row - expected).abs().max()) <= float(expected.abs().max()) / 127 * 0.51


class Tied(nn.Module):
    """A table that is also the last layer, a layer under two names, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.convolution = nn.Conv1d(32, 32, 1)
        self.first = self.second = nn.Linear(32, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.convolution(self.embedding(ids).mT).mT
        return self.head(self.second(self.first(x)))


@pytest.mark.parametrize("rest", ["float32", "bfloat16"])
def test_shared_layers_are_replaced_under_every_name(torchs, examined_of, rest) -> None:
    examined = examined_of(Tied(), torch.randint(0, 50, (2, 9)))
    tuned = applied(examined, int8_weight.Options(rest=rest))
    assert not [m for m in tuned.module.modules() if isinstance(m, nn.Linear | nn.Embedding)]
    assert len([m for m in tuned.module.modules() if isinstance(m, Int8Linear)]) == 2
    assert relative_error(tuned.call(*examined.flat_inputs[0]), examined.outputs[0]) < 0.05


def test_layers_whose_weights_are_used_without_a_call(examined_of) -> None:
    """nn.TransformerEncoderLayer hands its layers' weights to one fused operator."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    examined = examined_of(model, torch.randn(2, 8, 32))
    tuned = applied(examined)
    assert len([m for m in tuned.module.modules() if isinstance(m, Int8Linear)]) == 8
    assert relative_error(tuned.call(*examined.flat_inputs[0]), examined.outputs[0]) < 0.05


def test_layers_that_the_candidate_keeps_stay(torchs, examined_of) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    candidate = replace(Candidate.original(examined_of(model, torch.randn(2, 16))), kept=frozenset({"model.1"}))
    tuned = int8_weight.apply(candidate, PLAIN)
    assert [type(m) for m in tuned.module.module.model] == [Int8Linear, nn.Linear]


def test_nothing_to_do_is_an_error(examined_of) -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    candidate = replace(Candidate.original(examined_of(model, torch.randn(2, 16))), kept=frozenset({"model.0"}))
    with pytest.raises(TargetError, match="finds no linear layer"):
        int8_weight.apply(candidate, PLAIN)


def test_check_counts_linear_layers(machine, examined_of) -> None:
    assert int8_weight.check(EXAMINED["encoder"](), machine, PLAIN) == Applies("7 linear layers")
    convolution = examined_of(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))
    assert int8_weight.check(convolution, machine, PLAIN).reason == "the model has no linear layer"


@pytest.mark.parametrize(("num_rows", "way"), [(1, "torchs"), (1, "whets"), (64, "whets")])
def test_a_quarter_of_the_size_on_disk(request, examined_of, tmp_path, num_rows, way) -> None:
    request.getfixturevalue(way)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()
    examined = examined_of(model, torch.randn(num_rows, 512))
    save_file(dict(model.state_dict()), tmp_path / "original.safetensors")
    tuned = applied(examined)
    directory = tuned.save(tmp_path / "artefact")
    assert size_bytes(directory) < 0.3 * size_bytes(tmp_path / "original.safetensors")
    torch.testing.assert_close(load(directory).run(*examined.flat_inputs[0]), tuned.call(*examined.flat_inputs[0]))


@pytest.mark.skipif(bool(runtimes.missing_tools(at_load=False)), reason="no C++ compiler")
@pytest.mark.parametrize("most_rows", [4, 64])
def test_compiled_it_stays_in_int8(whets, examined_of, tmp_path, most_rows) -> None:
    """The compiler folds what it can compute beforehand; unpacked weights must not be stored."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).eval()
    examined = examined_of(model, torch.randn(1, 1024), torch.randn(most_rows, 1024))
    compiled = inductor.apply(applied(examined), inductor.Options())
    for batch, expected in zip(examined.flat_inputs, examined.outputs, strict=True):
        assert relative_error(compiled.call(*batch), expected) < 0.05
    directory = compiled.save(tmp_path / "artefact")
    # The weights and a library around them. Without bfloat16 products, the compiler keeps unpacked weights as well.
    if HAS_BFLOAT16 or most_rows == 4:
        assert size_bytes(directory) < 2 * 1024**2 + 1.5 * 1024**2
    assert relative_error(load(directory).run(*examined.flat_inputs[0]), examined.outputs[0]) < 0.05
