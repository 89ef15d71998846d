"""The onnxruntime technique: float32 and int8 close to the original, reloadable, and refused where it cannot work."""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from reloading import assert_the_same_when_reloaded
from safetensors.torch import save_file
from small_models import EXAMINED
from torch import Tensor, nn

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from whet.core.artefact.onnxruntime import DATA
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import MissingExtra, OptionError, TargetError, how_to_install
from whet.measure.machine import Limits
from whet.profiling.model import LayerCost, Profile
from whet.techniques.backend import onnxruntime
from whet.techniques.backend.onnxruntime import Options
from whet.techniques.rewriting import onnx_graph
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
    return functools.cache(lambda name, options: onnxruntime.apply(Candidate.original(subjects[name]), options))


_ALSO = [("f32", "encoder"), ("dynamic", "hugging_face_like")]  # what the other two modes show as well


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[pytest.mark.slow] * ((mode, name) in _ALSO))
        for mode in ("f32", "static", "dynamic")
        for name in EXAMINED
    ],
)
def test_close_to_the_original(subjects, converted, machine, name, mode) -> None:
    """Not closer than int8 allows for, either: less error would mean that nothing was quantised."""
    examined = subjects[name]
    options = Options(precision="f32") if mode == "f32" else Options(mode=mode)
    if isinstance(onnxruntime.check(examined, machine, options), NotApplicable):
        assert (name, mode) == ("conv_net", "dynamic")
        return
    tuned = converted(name, options)
    assert tuned.notes == ()
    low, high = (0.0, 1e-4) if mode == "f32" else (1e-3, 5e-2)
    for batch, wanted in zip(examined.flat_calibration, examined.outputs, strict=True):
        for y, original in zip(tuned.call(*batch), wanted, strict=True):
            assert (y.shape, y.dtype) == (original.shape, original.dtype)
            assert low <= relative(y, original) <= high
            assert cosine(y, original) >= 0.999


def test_reloads_in_a_fresh_process_with_the_same_outputs(subjects, converted, tmp_path) -> None:
    wanted = {}
    for name, examined in subjects.items():
        directory = tmp_path / name
        tuned = converted(name, Options())
        batches = examined.flat_inputs
        wanted[directory] = {f"{i}.{j}": y for i, b in enumerate(batches) for j, y in enumerate(tuned.call(*b))}
        tuned.save(directory)
        inputs = {f"{i}.{j}": x.contiguous() for i, batch in enumerate(batches) for j, x in enumerate(batch)}
        save_file(inputs, f"{directory}.inputs.safetensors")
    assert_the_same_when_reloaded(wanted, "onnxruntime")


@pytest.mark.parametrize("options", [Options(precision="f32"), Options(), Options(mode="dynamic")])
def test_sizes_it_was_not_shown(subjects, converted, options) -> None:
    examined = subjects["encoder"]
    tuned = converted("encoder", options)
    ids_BT = torch.randint(0, 50, (2, 23))
    with torch.no_grad():
        wanted = examined.workload.model(ids_BT)
    assert relative(tuned.call(ids_BT)[0], wanted) < (1e-4 if options.precision == "f32" else 5e-2)


@pytest.mark.parametrize("options", [Options(precision="f32"), Options()])
def test_large_weights_get_a_file_of_their_own(subjects, options, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(onnx_graph, "LARGEST_FILE_BYTES", 1000)
    examined = subjects["conv_net"]
    directory = onnxruntime.apply(Candidate.original(examined), options).save(tmp_path / "artefact")
    assert (directory / DATA).stat().st_size > 30_000
    from whet.core.artefact import load

    (y,) = load(directory).run(*examined.flat_inputs[0])
    assert relative(y, examined.outputs[0][0]) < 5e-2


def test_after_structure_techniques(subjects) -> None:
    examined = subjects["conv_net"]
    fused = fuse_conv_bn.apply(Candidate.original(examined), NoOptions())
    (y,) = onnxruntime.apply(fused, Options(precision="f32")).call(*examined.flat_inputs[0])
    assert relative(y, examined.outputs[0][0]) < 1e-4


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def test_a_branch_on_values_is_refused_and_never_traced() -> None:
    examined = examine(Workload(model=Branching(), inputs=[torch.ones(2, 3)]))
    with pytest.raises(TargetError, match=r"depends on the values of its tensors .*, and a graph knows one way only"):
        onnxruntime.apply(Candidate.original(examined), Options(precision="f32"))


class Eigenvalues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x)


def test_what_onnx_cannot_express_is_a_target_error() -> None:
    examined = examine(Workload(model=Eigenvalues(), inputs=[torch.eye(4)]))
    with pytest.raises(TargetError, match="the model cannot be written as ONNX: "):
        onnxruntime.apply(Candidate.original(examined), Options(precision="f32"))


def test_quantising_leaves_stdout_alone(subjects, capfd) -> None:
    onnxruntime.apply(Candidate.original(subjects["conv_net"]), Options())
    assert capfd.readouterr() == ("", "")


def test_refusals(subjects, machine, monkeypatch) -> None:
    conv, encoder = subjects["conv_net"], subjects["encoder"]

    def reason(examined: ExaminedWorkload, options: Options) -> str:
        verdict = onnxruntime.check(examined, machine, options)
        assert isinstance(verdict, NotApplicable)
        return verdict.reason

    assert "linear layers" in reason(conv, Options(mode="dynamic"))
    assert "belongs to int8" in reason(encoder, Options(precision="f32", mode="dynamic"))
    half = examine(Workload(model=nn.Linear(4, 4).bfloat16(), inputs=[torch.ones(2, 4).bfloat16()]))
    assert "16-bit" in reason(half, Options())
    assert isinstance(onnxruntime.check(encoder, machine, Options(mode="dynamic")), Applies)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert reason(conv, Options()) == "onnxscript is not installed: " + how_to_install("onnx")
    with pytest.raises(MissingExtra, match="onnxscript"):
        onnxruntime.apply(Candidate.original(conv), Options())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert reason(conv, Options()) == "onnxruntime and onnxscript are not installed: " + how_to_install("onnx")


@pytest.mark.parametrize("wrong", [{"precision": "bf16"}, {"mode": "both"}])
def test_wrong_options_say_what_is_allowed(wrong) -> None:
    with pytest.raises(OptionError, match="must be one of"):
        Options(**wrong)


def test_the_bound_counts_what_each_mode_shrinks() -> None:
    layer = LayerCost(
        name="fc",
        kind="Linear",
        calls=1,
        time_s=1e-2,
        flops=10**6,
        weight_bytes=4 * 10**7,
        activation_bytes=4 * 10**7,
        num_operators=1,
    )
    limits = Limits(read_bandwidth=4e10, gemm={"float32": 2e11, "int8": 2e12})
    profile = Profile(total_s=1e-2, layers=(layer,))
    options = [Options(precision="f32"), Options(mode="dynamic"), Options()]
    assert [onnxruntime.predict(profile, limits, o) for o in options] == pytest.approx([5.0, 8.0, 20.0])
    # without VNNI, torch's int8 product is slow, which says nothing of ONNX Runtime's
    slow = replace(limits, gemm={"float32": 2e11, "int8": 6e7})
    assert onnxruntime.predict(profile, slow, Options()) == pytest.approx(20.0)
