"""int8 with fixed ranges: numerics by numpy, layers of every shape, and compiled without touching its inputs."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import EXAMINED
from torch import nn

from whet.core.artefact import inductor as runtimes
from whet.errors import OptionError, TargetError
from whet.measure.machine import describe
from whet.techniques.backend import inductor
from whet.techniques.precision import int8_static
from whet.techniques.quantisation.pt2e import shield_residuals
from whet.techniques.quantisation.quantisable import has_int8_products
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Applies, Candidate, NotApplicable

PLAIN = int8_static.Options(rest="float32")


def quantised(examined, options=PLAIN, **changes):
    return int8_static.apply(Candidate(examined, Candidate.original(examined).module, **changes), options)


def operators(candidate) -> list[str]:
    graphs = [m.graph for m in candidate.module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"]


def rounded_linear(x, weight, bias):
    """The same layer by numpy, in float64: uint8 activations over their range, int8 weights over their rows' ranges.

    Processors without int8 products sum pairs of them in 16 bits, so that activations have 7 bits there.
    """
    most = 255 if has_int8_products(describe()) else 127
    x, weight = x.double().numpy(), weight.detach().double().numpy()
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = (high - low) / most
    zero = np.clip(np.round(-low / scale), 0, most)
    x = (np.clip(np.round(x / scale) + zero, 0, most) - zero) * scale
    scales = np.abs(weight).max(axis=1, keepdims=True) / 127.5
    weight = np.clip(np.round(weight / scales), -128, 127) * scales
    return torch.from_numpy(x @ weight.T) + (0 if bias is None else bias.detach().double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 8), (3, 17), (2, 5, 17), (513, 8)], ids=str)
def test_a_linear_layer_is_rounded_as_numpy_does(examined_of, shape, bias) -> None:
    layer = nn.Linear(shape[-1], 11, bias=bias)
    x = torch.randn(shape)
    found = quantised(examined_of(layer, x)).call(x)[0].detach()
    expected = rounded_linear(x, layer.weight, layer.bias)
    # a value halfway between two levels may fall either way: one level of one input
    assert float((found.double() - expected).abs().max()) < 0.03
    assert float((found.double() - expected).square().mean().sqrt()) < 2e-3
    error = relative_error((found,), (layer(x),))
    assert 1e-4 < error < 0.05, "it must have been rounded, and not by much"


class Mixed(nn.Module):
    """Layers with and without bias, odd widths, a residual, attention by matmul, and one layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(17, 33, bias=False), nn.Linear(33, 17)
        self.head = nn.Linear(17, 5)

    def forward(self, x):
        y = self.down(F.gelu(self.up(x))) + x
        y = self.down(F.gelu(self.up(y))) + y
        weights = (y @ y.transpose(-1, -2)).softmax(dim=-1)
        return self.head(weights @ y)


@pytest.mark.parametrize("calibration", ["minmax", "percentile", "entropy"])
def test_every_linear_layer_is_quantised(examined_of, calibration) -> None:
    examined = examined_of(Mixed(), torch.randn(3, 7, 17), torch.randn(64, 7, 17))
    tuned = quantised(examined, int8_static.Options(calibration=calibration, rest="float32"))
    found = operators(tuned)
    assert sum("aten.linear" in name for name in found) == sum("dequantize_per_channel" in name for name in found) == 5
    assert not any("quantize" in name and "mul" in name for name in found)
    for batch, expected in zip(examined.flat_inputs, examined.outputs, strict=True):
        assert 1e-4 < relative_error(tuned.call(*batch), expected) < 0.1


def test_batch_norms_are_folded_and_convolutions_quantised() -> None:
    examined = EXAMINED["conv_net"]()
    tuned = quantised(examined)
    found = operators(tuned)
    assert not any("batch_norm" in name for name in found)
    assert sum("dequantize_per_channel" in name for name in found) == 3  # two convolutions and the head
    assert relative_error(tuned.call(*examined.flat_inputs[0]), examined.outputs[0]) < 0.05


def test_batches_of_other_sizes_than_calibrated(examined_of) -> None:
    """A batch of one among the inputs must not fix the batch size."""
    model = Mixed().eval()
    tuned = quantised(examined_of(model, torch.randn(1, 7, 17), torch.randn(4, 7, 17)))
    x = torch.randn(129, 7, 17)
    with torch.no_grad():
        assert relative_error(tuned.call(x), (model(x),)) < 0.2


def test_layers_that_the_candidate_keeps_stay_in_float(examined_of) -> None:
    examined = examined_of(Mixed(), torch.randn(3, 7, 17))
    kept = quantised(examined, kept=frozenset({"model.up", "model.down", "model.head"}))
    assert not any("quantize" in name for name in operators(kept))
    assert relative_error(kept.call(*examined.flat_inputs[0]), examined.outputs[0]) < 1e-5
    one = quantised(examined, kept=frozenset({"model.head"}))
    assert sum("dequantize_per_channel" in name for name in operators(one)) == 4


def test_outliers_are_clipped_where_asked(examined_of) -> None:
    """One value a thousand times the others: with minmax, the others all fall into one level."""
    x = torch.randn(64, 256)
    x[0, 0] = 1000.0
    layer = nn.Linear(256, 8)
    with torch.no_grad():
        layer.weight[:, 0] = 0.0  # nothing depends on it
    examined = examined_of(layer, x)

    def error(calibration: str) -> float:
        tuned = quantised(examined, int8_static.Options(calibration=calibration, rest="float32"))
        return relative_error((tuned.call(x)[0][1:],), (examined.outputs[0][0][1:],))

    coarser = 1 if has_int8_products(describe()) else 2  # half the levels, see `rounded_linear`
    assert error("minmax") > 0.2
    assert error("percentile") < 0.05 * coarser
    assert error("entropy") < 0.1 * coarser  # a histogram with such a reach is coarse


def test_masks_survive_bfloat16() -> None:
    """A float32 minimum in a graph is beyond bfloat16."""
    examined = EXAMINED["hugging_face_like"]()
    tuned = quantised(examined, int8_static.Options())
    outputs = tuned.call(*examined.flat_inputs[0])
    assert [y.dtype for y in outputs] == [torch.float32, torch.float32]
    assert relative_error(outputs, examined.outputs[0]) < 0.05


def test_small_weights_keep_their_levels(examined_of) -> None:
    """torchao's own recipe bounds scales by 2^-12 and would round most of these to zero."""
    layer = nn.Linear(64, 8)
    nn.init.normal_(layer.weight, std=1e-4)
    nn.init.zeros_(layer.bias)
    x = torch.randn(16, 64)
    examined = examined_of(layer, x)
    assert relative_error(quantised(examined).call(x), examined.outputs[0]) < 0.03


def test_refused_where_it_cannot_pay(machine, examined_of) -> None:
    examined = EXAMINED["encoder"]()
    assert isinstance(int8_static.check(examined, machine, int8_static.Options()), Applies)
    old = replace(machine, isa=("avx2",))
    assert isinstance(int8_static.check(examined, old, int8_static.Options()), NotApplicable)
    no_bf16 = replace(machine, isa=("avx2", "avx_vnni"))
    assert "rest=float32" in int8_static.check(examined, no_bf16, int8_static.Options()).reason
    assert isinstance(int8_static.check(examined, no_bf16, PLAIN), Applies)
    none = examined_of(nn.LayerNorm(8), torch.randn(2, 8))
    assert "no linear layer" in int8_static.check(none, machine, PLAIN).reason
    half = examined_of(nn.Linear(8, 8).bfloat16(), torch.randn(2, 8).bfloat16())
    assert isinstance(int8_static.check(half, machine, PLAIN), NotApplicable)


def test_unknown_options_are_refused() -> None:
    candidate = Candidate.original(EXAMINED["encoder"]())
    with pytest.raises(OptionError, match="minmax, percentile, entropy, not 'mean'"):
        int8_static.apply(candidate, int8_static.Options(calibration="mean"))
    with pytest.raises(OptionError, match="bfloat16 or float32, not 'float16'"):
        int8_static.apply(candidate, int8_static.Options(rest="float16"))


def test_scalars_added_to_a_layer(examined_of) -> None:
    """torchao alone fails on these; adaptive layer norms have them."""

    class Modulated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.layer = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(x) * (1 + self.scale(x)) + (self.scale(x) + 2)

    examined = examined_of(Modulated(), torch.randn(8, 16))
    tuned = quantised(examined)
    assert sum("dequantize_per_channel" in name for name in operators(tuned)) == 3
    assert relative_error(tuned.call(*examined.flat_inputs[0]), examined.outputs[0]) < 0.03


def test_what_torchao_cannot_do_is_a_user_error(examined_of, monkeypatch) -> None:
    monkeypatch.setattr("whet.techniques.quantisation.pt2e._convert", lambda *args: 1 / 0)
    with pytest.raises(TargetError, match="torchao cannot quantise the model: division by zero"):
        quantised(examined_of(nn.Linear(4, 4), torch.randn(2, 4)))


class Residuals(nn.Module):
    """Adds its input, and then a constant of the same shape, to what int8 layers give."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("position", torch.randn(1, 9, 32))

    def forward(self, x):
        x = self.first(x) + x
        x = self.position[:, :8] + self.second(x)
        return x + self.third(x)


def test_additions_of_what_is_given_are_written_as_subtractions() -> None:
    graph_module = torch.export.export(Residuals().eval(), (torch.randn(1, 8, 32),)).module(check_guards=False)
    x = torch.randn(1, 8, 32)
    before = graph_module(x)
    shield_residuals(graph_module.graph)
    graph_module.recompile()
    assert torch.equal(graph_module(x), before)
    names = [str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"]
    assert (names.count("aten.sub.Tensor"), names.count("aten.add.Tensor")) == (2, 1)  # the last adds what it computed


@pytest.mark.skipif(bool(runtimes.missing_tools(at_load=False)), reason="no C++ compiler")
def test_compiled_to_int8_kernels_that_leave_inputs_and_constants_alone(examined_of, tmp_path) -> None:
    x = torch.randn(1, 8, 32)
    examined = examined_of(Residuals(), x)
    eager = quantised(examined, int8_static.Options())
    compiled = inductor.apply(eager, inductor.Options())
    given = x.clone()
    first = compiled.call(given)[0].clone()
    assert torch.equal(given, x), "the compiled model wrote into the caller's input"
    assert torch.equal(compiled.call(given)[0], first), "the compiled model wrote into its own constants"
    assert relative_error((first,), eager.call(x)) < 0.02
    assert relative_error((first,), examined.outputs[0]) < 0.05
    directory = compiled.save(tmp_path / "artefact")
    with zipfile.ZipFile(directory / runtimes.FILE) as archive:
        library = archive.read(next(name for name in archive.namelist() if name.endswith(".so")))
    assert b"qlinear_pointwise" in library, "the product was compiled in floating point"
