"""The openvino technique: every precision close to the original, reloadable, and refused where it cannot work."""

import dataclasses
import functools
import sys
from collections.abc import Callable

import pytest
import torch
from reloading import assert_the_same_when_reloaded
from safetensors.torch import save_file
from small_models import EXAMINED
from torch import Tensor, nn

pytest.importorskip("nncf")

from whet.core.artefact.openvino import core, import_openvino
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import MissingExtra, OptionError, TargetError, how_to_install
from whet.measure.machine import Limits, describe
from whet.profiling.model import LayerCost, Profile
from whet.techniques.backend import openvino
from whet.techniques.backend.openvino import Options
from whet.techniques.quantisation.quantisable import has_wide_sums
from whet.techniques.structure import fuse_conv_bn
from whet.techniques.technique import Applies, Candidate, NoOptions, NotApplicable


def cosine(found: Tensor, wanted: Tensor) -> float:
    return float(nn.functional.cosine_similarity(found.double().flatten(), wanted.double().flatten(), dim=0))


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.fixture(scope="module")
def subjects() -> dict[str, ExaminedWorkload]:
    return {name: build() for name, build in EXAMINED.items()}


@pytest.fixture(scope="module")
def converted(subjects) -> Callable[[str, Options], Candidate]:
    """A small model with options applied, once for all tests."""
    return functools.cache(lambda name, options: openvino.apply(Candidate.original(subjects[name]), options))


_CLOSE = {"f32": (0, 1e-4), "bf16": (1e-4, 2e-2), "int8": (1e-3, 5e-2)}
_ALSO = [("f32", "hugging_face_like"), ("bf16", "encoder")]  # what the other two precisions show as well


@pytest.mark.parametrize(
    ("name", "precision", "low", "high"),
    [
        pytest.param(name, precision, *bounds, marks=[pytest.mark.slow] * ((precision, name) in _ALSO))
        for precision, bounds in _CLOSE.items()
        for name in EXAMINED
    ],
)
def test_close_to_the_original(subjects, converted, name, precision, low, high) -> None:
    """Not closer than the precision allows for, either: less error would mean that nothing was converted."""
    examined = subjects[name]
    tuned = converted(name, Options(precision=precision))
    assert tuned.notes == ()
    for batch, wanted in zip(examined.flat_calibration, examined.outputs, strict=True):
        for y, original in zip(tuned.call(*batch), wanted, strict=True):
            assert (y.shape, y.dtype) == (original.shape, original.dtype)
            assert low <= relative(y, original) <= high
            assert cosine(y, original) >= 0.999


def test_reloads_in_a_fresh_process_with_the_same_outputs(subjects, converted, tmp_path) -> None:
    wanted = {}
    for name, examined in subjects.items():
        for precision in ("int8",) if name == "encoder" else ("bf16",):
            directory = tmp_path / f"{name}-{precision}"
            tuned = converted(name, Options(precision=precision))
            tuned.save(directory)
            batches = examined.flat_inputs
            inputs = {f"{i}.{j}": x.contiguous() for i, batch in enumerate(batches) for j, x in enumerate(batch)}
            save_file(inputs, f"{directory}.inputs.safetensors")
            wanted[directory] = {f"{i}.{j}": y for i, b in enumerate(batches) for j, y in enumerate(tuned.call(*b))}
    assert_the_same_when_reloaded(wanted, "openvino")


def test_sizes_it_was_not_shown(subjects, converted) -> None:
    """A dimension that varied among the inputs stays free; one that never did is fixed."""
    examined = subjects["encoder"]
    tuned = converted("encoder", Options(precision="f32"))
    ids_BT = torch.randint(0, 50, (2, 23))
    with torch.no_grad():
        wanted = examined.workload.model(ids_BT)
    torch.testing.assert_close(tuned.call(ids_BT)[0], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="shape"):
        tuned.call(torch.randint(0, 50, (3, 23)))


def test_after_structure_techniques(subjects) -> None:
    examined = subjects["conv_net"]
    fused = fuse_conv_bn.apply(Candidate.original(examined), NoOptions())
    (y,) = openvino.apply(fused, Options(precision="f32")).call(*examined.flat_inputs[0])
    assert relative(y, examined.outputs[0][0]) < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        Options(smooth_quant=True),
        Options(ranges="extreme", rest="f32"),
        pytest.param(Options(ranges="quantile", preset="mixed"), marks=pytest.mark.slow),
        pytest.param(Options(ranges="histogram"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_way_of_quantising_holds(subjects, options) -> None:
    examined = subjects["encoder"]
    tuned = openvino.apply(Candidate.original(examined), options)
    least = 0.999 if has_wide_sums(describe()) else 0.998  # else weights have 7 bits, so that sums do not overflow
    for batch, wanted in zip(examined.flat_calibration, examined.outputs, strict=True):
        assert cosine(tuned.call(*batch)[0], wanted[0]) >= least


class Sore(nn.Module):
    """Three like layers; into the second goes one channel that is a thousand times the others and weighs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.sore, self.last = (nn.Linear(32, 32) for _ in range(3))
        nn.init.zeros_(self.sore.weight[:, 0].detach())
        self.register_buffer("loud", torch.ones(32).index_fill(0, torch.tensor([0]), 1000.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.sore(torch.relu(self.first(x)) * self.loud)))


def test_keep_finds_the_layer_that_int8_hurts() -> None:
    with torch.no_grad():
        model = Sore().eval()
    examined = examine(Workload(model=model, inputs=[torch.randn(16, 32) for _ in range(4)]))
    errors, notes = {}, {}
    for keep in (0, 1):
        tuned = openvino.apply(Candidate.original(examined), Options(keep=keep, rest="f32"))
        errors[keep] = relative(tuned.call(*examined.flat_inputs[0])[0], examined.outputs[0][0])
        notes[keep] = tuned.notes
    assert notes == {0: (), 1: ("openvino: of 3 layers in order, kept out of int8: 2",)}
    assert errors[1] < errors[0] / 5


def test_nncf_makes_no_core_of_its_own(monkeypatch) -> None:
    examined = examine(Workload(model=nn.Linear(8, 8).eval(), inputs=[torch.randn(4, 8)]))
    core()
    monkeypatch.setattr(import_openvino(), "Core", None)  # to call it is an error
    assert openvino.apply(Candidate.original(examined), Options()).notes == ()


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def test_a_branch_on_values_is_refused_and_never_traced() -> None:
    examined = examine(Workload(model=Branching(), inputs=[torch.ones(2, 3)]))
    with pytest.raises(TargetError, match=r"depends on the values of its tensors .*, and a graph knows one way only"):
        openvino.apply(Candidate.original(examined), Options(precision="f32"))


class Eigenvalues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x)


def test_what_openvino_cannot_take_is_a_target_error() -> None:
    examined = examine(Workload(model=Eigenvalues(), inputs=[torch.eye(4)]))
    with pytest.raises(TargetError, match=r"OpenVINO cannot convert the model: .*linalg_eig"):
        openvino.apply(Candidate.original(examined), Options(precision="f32"))


def test_quantising_leaves_stdout_alone(subjects, capfd) -> None:
    openvino.apply(Candidate.original(subjects["conv_net"]), Options())
    assert capfd.readouterr().out == ""


def test_refusals(subjects, machine, monkeypatch) -> None:
    conv, encoder = subjects["conv_net"], subjects["encoder"]

    def reason(examined: ExaminedWorkload, options: Options, chip=machine) -> str:
        verdict = openvino.check(examined, chip, options)
        assert isinstance(verdict, NotApplicable)
        return verdict.reason

    old = dataclasses.replace(machine, isa=("avx2",))
    assert "bfloat16" in reason(conv, Options(precision="bf16"), old)
    assert "bfloat16" in reason(conv, Options(rest="bf16"), old)
    assert isinstance(openvino.check(conv, old, Options()), Applies)
    assert "belong to int8" in reason(conv, Options(precision="f32", keep=2))
    assert "linear layers" in reason(conv, Options(smooth_quant=True))
    assert isinstance(openvino.check(encoder, machine, Options(smooth_quant=True)), Applies)
    monkeypatch.setitem(sys.modules, "nncf", None)
    assert reason(conv, Options()) == "nncf, which int8 needs, is not installed: " + how_to_install("openvino")
    assert isinstance(openvino.check(conv, machine, Options(precision="bf16")), Applies)
    with pytest.raises(MissingExtra, match="nncf"):
        openvino.apply(Candidate.original(conv), Options())
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert reason(conv, Options(precision="f32")) == "openvino is not installed: " + how_to_install("openvino")
    with pytest.raises(MissingExtra, match="openvino"):
        openvino.apply(Candidate.original(conv), Options(precision="f32"))


@pytest.mark.parametrize("wrong", [{"precision": "fp16"}, {"preset": "fast"}, {"ranges": "all"}, {"rest": "int8"}])
def test_wrong_options_say_what_is_allowed(wrong) -> None:
    with pytest.raises(OptionError, match="must be one of"):
        Options(**wrong)


def test_keep_is_not_negative() -> None:
    with pytest.raises(OptionError, match="0 or more"):
        Options(keep=-1)


def test_the_bound_grows_as_the_precision_shrinks() -> None:
    layer = LayerCost(
        name="fc",
        kind="Linear",
        calls=1,
        time_s=1e-2,
        flops=10**9,
        weight_bytes=4 * 10**6,
        activation_bytes=10**5,
        num_operators=1,
    )
    limits = Limits(read_bandwidth=4e10, gemm={"float32": 2e11, "bfloat16": 1e12, "int8": 2e12})
    bounds = [
        openvino.predict(Profile(total_s=1e-2, layers=(layer,)), limits, Options(precision=p))
        for p in ("f32", "bf16", "int8")
    ]
    assert bounds == pytest.approx([2.0, 10.0, 20.0])
    # without VNNI, torch's int8 product is slow, which says nothing of OpenVINO's
    slow = dataclasses.replace(limits, gemm={"float32": 2e11, "int8": 6e9})
    assert openvino.predict(Profile(total_s=1e-2, layers=(layer,)), slow, Options(precision="int8")) == pytest.approx(
        4.0
    )
