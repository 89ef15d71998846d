"""int8 with ranges found at each call: numerics by numpy, and compiled."""

import zipfile
from dataclasses import replace

import pytest
import torch
from small_models import EXAMINED
from test_int8_static import Mixed, operators, rounded_linear
from torch import nn

from whet.core.artefact import inductor as runtimes
from whet.techniques.backend import inductor
from whet.techniques.precision import int8_dynamic
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Applies, Candidate, NotApplicable

PLAIN = int8_dynamic.Options(rest="float32")


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_rounded_as_numpy_does_whatever_the_range(examined_of, bias) -> None:
    layer = nn.Linear(17, 11, bias=bias)
    x = torch.randn(2, 5, 17)
    tuned = int8_dynamic.apply(Candidate.original(examined_of(layer, x)), PLAIN)
    for scale in (1.0, 0.01, 100.0):  # far from the batch it was made with
        found = tuned.call(x * scale)[0].detach()
        expected = rounded_linear(x * scale, layer.weight, layer.bias)
        assert float((found.double() - expected).abs().max()) < 0.03 * scale
        assert float((found.double() - expected).square().mean().sqrt()) < 2e-3 * scale


def test_linear_layers_are_quantised_and_convolutions_are_not(examined_of) -> None:
    mixed = int8_dynamic.apply(Candidate.original(examined_of(Mixed(), torch.randn(3, 7, 17))), PLAIN)
    assert sum("dequantize_per_channel" in name for name in operators(mixed)) == 5
    conv_net = int8_dynamic.apply(Candidate.original(EXAMINED["conv_net"]()), PLAIN)
    assert sum("dequantize_per_channel" in name for name in operators(conv_net)) == 1


def test_layers_that_the_candidate_keeps_stay_in_float(examined_of) -> None:
    examined = examined_of(Mixed(), torch.randn(3, 7, 17))
    candidate = replace(Candidate.original(examined), kept=frozenset({"model.up", "model.down", "model.head"}))
    assert (
        relative_error(int8_dynamic.apply(candidate, PLAIN).call(*examined.flat_inputs[0]), examined.outputs[0]) < 1e-5
    )


def test_refused_where_it_cannot_pay(machine, examined_of) -> None:
    assert isinstance(int8_dynamic.check(EXAMINED["encoder"](), machine, PLAIN), Applies)
    only_convolution = examined_of(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))
    assert "no linear layer" in int8_dynamic.check(only_convolution, machine, PLAIN).reason
    old = replace(machine, isa=("avx2",))
    assert isinstance(int8_dynamic.check(EXAMINED["encoder"](), old, PLAIN), NotApplicable)


@pytest.mark.skipif(bool(runtimes.missing_tools(at_load=False)), reason="no C++ compiler")
def test_compiled_to_int8_kernels_for_any_batch(examined_of, tmp_path) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).eval()
    examined = examined_of(model, torch.randn(1, 32), torch.randn(6, 32))
    tuned = int8_dynamic.apply(Candidate.original(examined), int8_dynamic.Options())
    compiled = inductor.apply(tuned, inductor.Options())
    for num_rows in (1, 6, 33):
        x = torch.randn(num_rows, 32)
        with torch.no_grad():
            assert relative_error(compiled.call(x), (model(x),)) < 0.06
    directory = compiled.save(tmp_path / "artefact")
    with zipfile.ZipFile(directory / runtimes.FILE) as archive:
        library = archive.read(next(name for name in archive.namelist() if name.endswith(".so")))
    assert b"qlinear_pointwise" in library
