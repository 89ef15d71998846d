"""Padded sizes: the layers' own numbers and gradients, the same parameters, on a CPU; refused there as a technique."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import TinyLM, TinyNet, adamw, image_workload, tiny_workload, trainer_with
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from whet.core.recipe import Step
from whet.core.workload.training import Trainer
from whet.measure.machine import Gpu, Limits, describe
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms import padded_dimensions
from whet.techniques.mechanisms.deferred_logits import DeferredLogits
from whet.techniques.mechanisms.padded_dimensions import align, unaligned_layers
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.proof import gradients
from whet.techniques.proof.updates import prove_updates
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE

TECHNIQUE = TRAINING_TABLE["aligned_dimensions"]
ALIGNED = Step(technique="aligned_dimensions", options={"most_growth": 9.0})  # for small layers
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.fixture
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the small layers of the tests' models as well."""
    monkeypatch.setattr(padded_dimensions, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(padded_dimensions, "LEAST_FILTERS", 1)


def same_as_in_float64(layer: nn.Module, x: Tensor) -> None:
    """Check output and gradients of a layer that is aligned against a copy in float64 that is not."""
    plain = copy.deepcopy(layer).double()
    precise = x.double().requires_grad_()
    x = x.requires_grad_()
    align(layer)
    out, expected = layer(x), plain(precise)
    assert out.shape == expected.shape
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (out.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    assert layer.state_dict().keys() == plain.state_dict().keys()
    for mine, theirs in zip((x, *layer.parameters()), (precise, *plain.parameters()), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert mine.grad.shape == mine.shape
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


@given(
    inputs=st.integers(1, 20),
    outputs=st.integers(1, 140),
    leading=st.lists(st.integers(1, 3), max_size=3),
    bias=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_linear_layer_gives_its_own_numbers(inputs: int, outputs: int, leading: list[int], bias: bool) -> None:
    torch.manual_seed(inputs + outputs)
    same_as_in_float64(nn.Linear(inputs, outputs, bias=bias), torch.randn(*leading, inputs))


@given(
    dims=st.integers(1, 3),
    inputs=st.integers(1, 17),
    outputs=st.integers(1, 17),
    size=st.integers(1, 3),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    is_single=st.booleans(),
    bias=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_convolution_gives_its_own_numbers(
    dims: int, inputs: int, outputs: int, size: int, mode: str, is_single: bool, bias: bool
) -> None:
    torch.manual_seed(inputs + outputs)
    layer = CONVS[dims](inputs, outputs, size, padding=size // 2, stride=2, padding_mode=mode, bias=bias)
    same_as_in_float64(layer, torch.randn(*([] if is_single else [2]), inputs, *[5] * dims))


def test_an_aligned_layer_computes_with_the_padded_sizes() -> None:
    shapes: list[tuple[int, ...]] = []

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name() in ("aten::addmm", "aten::convolution"):
                shapes.append(tuple(args[2 if "addmm" in func.name() else 1].shape))
            return func(*args, **(kwargs or {}))

    linear, conv = nn.Linear(20, 1100), nn.Conv2d(5, 12, 3)
    for layer, x in ((linear, torch.randn(4, 20)), (conv, torch.randn(2, 5, 6, 6))):
        align(layer)
        with Shapes():
            layer(x)
            layer.eval()(x)
    assert shapes == [(24, 1152), (20, 1100), (16, 8, 3, 3), (12, 5, 3, 3)], "in evaluation they are as they were"


def test_inside_autocast_the_padding_comes_after_the_cast() -> None:
    padded: list[torch.dtype] = []

    class Pads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name() == "aten::constant_pad_nd":
                padded.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    layer, x = nn.Linear(20, 100), torch.randn(8, 20)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
        expected.float().square().sum().backward()
        wanted = layer.weight.grad
        layer.zero_grad()
        align(layer)
        with Pads():
            out = layer(x)
    assert padded == [torch.bfloat16] * 3
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
    out.float().square().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype is torch.float32
    torch.testing.assert_close(layer.weight.grad, wanted, rtol=2e-2, atol=2e-2)


def test_a_compiled_layer_gives_its_own_numbers() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(20, 100), torch.randn(8, 20)
    expected = layer(x)
    (wanted,) = torch.autograd.grad(expected.square().sum(), layer.weight)
    align(layer)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    out = compiled(x)
    torch.testing.assert_close(out, expected)
    (found,) = torch.autograd.grad(out.square().sum(), layer.weight)
    torch.testing.assert_close(found, wanted)


def test_which_layers_are_padded() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layers = {
        "a vocabulary": nn.Linear(256, 1100),
        "an input": nn.Linear(1001, 128),
        "aligned": nn.Linear(256, 1152),
        "small": nn.Linear(20, 100),
        "one output": nn.Linear(2**17, 1),
        "own forward": Own(256, 1100),
        "attention": nn.MultiheadAttention(500, 4),
        "a computed weight": torch.nn.utils.parametrizations.weight_norm(nn.Linear(256, 1100)),
        "channels": nn.Conv2d(60, 60, 3),
        "images": nn.Conv2d(3, 64, 7),
        "groups": nn.Conv2d(60, 60, 9, groups=2),
        "transposed": nn.ConvTranspose2d(60, 60, 3),
    }
    model = nn.ModuleDict({name.replace(" ", "_"): layer for name, layer in layers.items()})
    found, num_taken = unaligned_layers(model, 1.25)
    assert found == [layers["a vocabulary"], layers["an input"], layers["channels"]]
    assert not num_taken
    found, _ = unaligned_layers(model, 3.0)
    assert layers["images"] in found
    assert layers["one output"] not in found


def test_it_is_refused_on_a_cpu_and_without_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = describe()
    parts = Parts(TinyLM(), adamw(TinyLM().parameters()), [])
    refused = TECHNIQUE.check(parts, machine, TECHNIQUE.options())
    assert isinstance(refused, NotApplicable)
    assert "the model is on the CPU" in refused.reason
    monkeypatch.setattr(Parts, "device_type", property(lambda self: "cuda"))
    gpu = Gpu(index=0, name="some GPU", capability=(6, 1))
    refused = TECHNIQUE.check(parts, replace(machine, gpus=(gpu,)), TECHNIQUE.options())
    assert isinstance(refused, NotApplicable) and "tensor cores come with 7.0" in refused.reason
    machine = replace(machine, gpus=(replace(gpu, capability=(8, 0)),))
    refused = TECHNIQUE.check(parts, machine, TECHNIQUE.options())
    assert isinstance(refused, NotApplicable) and refused.is_so, "all layers are small"
    monkeypatch.setattr(padded_dimensions, "LEAST_WEIGHTS", 2**14)
    found = TECHNIQUE.check(parts, machine, TECHNIQUE.options())
    assert found == Applies("1 layers")
    assert isinstance(TECHNIQUE.check(parts, machine, TECHNIQUE.options(most_growth=1.0)), NotApplicable)


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("make", [tiny_workload, image_workload])
def test_training_with_padded_sizes_is_the_same(make: Any) -> None:
    """Gradients against float64, updates, and losses; with clipping where the workload clips."""
    workload, original = make(), make()
    before = {name: id(p) for name, p in workload.model.named_parameters()}
    trainer = trainer_with(workload, ALIGNED)
    assert any(
        isinstance(m, padded_dimensions.AlignedLinear | padded_dimensions.AlignedConv) for m in trainer.model.modules()
    )
    assert {name: id(p) for name, p in trainer.model.named_parameters()} == before
    assert {k: v.shape for k, v in trainer.model.state_dict().items()} == {
        k: v.shape for k, v in original.model.state_dict().items()
    }
    batches = list(original.batches)[:2]
    original.model.train()
    own = gradients.gradients_of(original.model, original.loss, batches, seed=0)
    reference = gradients.reference_gradients(original.model, original.loss, batches, seed=0)
    found = gradients.gradients_of(trainer.model, workload.loss, batches, seed=0)
    proof = gradients.judged(found, own, reference, TECHNIQUE.exactness)
    assert proof.is_same, proof.words
    updates = prove_updates(workload, trainer)
    assert updates.is_same is True, updates.words
    plain = Trainer(original)
    while len(trainer.losses) < 20:
        trainer.step()
    for _ in range(20):
        plain.step()
    torch.testing.assert_close(torch.stack(trainer.losses), torch.stack(plain.losses), rtol=1e-4, atol=0)
    kind = TinyLM if make is tiny_workload else TinyNet
    kind().load_state_dict(trainer.model.state_dict())


@pytest.mark.usefixtures("small_layers")
def test_tied_weights_stay_tied() -> None:
    found = []
    for steps in ((), (ALIGNED,)):
        workload = tiny_workload()
        model: Any = workload.model
        model.head.weight = model.embedding.weight
        trainer = trainer_with(workload, *steps)
        for _ in range(5):
            trainer.step()
        assert model.head.weight is model.embedding.weight
        found.append(torch.stack(trainer.losses))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


@pytest.mark.usefixtures("small_layers")
def test_with_chunked_loss_the_last_layer_is_left_to_it() -> None:
    workload, original = tiny_workload(), tiny_workload()
    trainer = trainer_with(workload, ALIGNED, Step(technique="chunked_loss"))
    model: Any = trainer.model
    assert isinstance(model(next(iter(workload.batches))), DeferredLogits)
    assert isinstance(model.blocks[0].up, padded_dimensions.AlignedLinear)
    assert not isinstance(model.head, padded_dimensions.AlignedLinear)
    parts = Parts(tiny_workload().model, adamw(TinyLM().parameters()), [])
    parts = TRAINING_TABLE["chunked_loss"].apply(parts, None)
    parts = TECHNIQUE.apply(parts, TECHNIQUE.options(most_growth=3.0))
    assert "1 more are computed by other techniques" in parts.notes[0]
    plain = Trainer(original)
    for _ in range(5):
        trainer.step()
        plain.step()
    torch.testing.assert_close(torch.stack(trainer.losses), torch.stack(plain.losses), rtol=1e-5, atol=0)


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("other", ["autocast", "channels_last", "bf16_parameters"])
def test_in_one_recipe_with_what_changes_the_same_layers(other: str) -> None:
    if other != "channels_last" and not describe().computes_bfloat16("cpu"):
        pytest.skip("this processor does not multiply bfloat16")
    make = image_workload if other == "channels_last" else tiny_workload
    losses = []
    for steps in ([Step(technique=other)], [Step(technique=other), ALIGNED]):
        trainer = trainer_with(make(), *steps)
        for _ in range(5):
            trainer.step()
        losses.append(torch.stack(trainer.losses))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=0)


def test_the_bound_is_the_limit_of_the_products() -> None:
    limits = Limits(read_bandwidth=1e12, gemm={"float32": 50e12, "tfloat32": 400e12, "bfloat16": 800e12})
    profile = StepProfile(total_s=1.0, products_s=0.5, other_s=0.5, flops=int(10e12))
    assert TECHNIQUE.predict(profile, limits, TECHNIQUE.options()) == pytest.approx(1 / (0.5 + 10 / 400))
    rounded = profile.model_copy(update={"flops": int(300e12)})  # at 600 of 800 TFLOP/s
    assert TECHNIQUE.predict(rounded, limits, TECHNIQUE.options()) == pytest.approx(1 / (0.5 + 300 / 800))
    assert TECHNIQUE.predict(profile, Limits(read_bandwidth=1e12), TECHNIQUE.options()) == pytest.approx(2.0)


@pytest.mark.gpu
def test_padded_sizes_train_the_same_on_a_gpu() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(250, 1000), nn.GELU(), nn.Linear(1000, 5001)).cuda()
    parts = Parts(model, adamw(model.parameters()), [])
    assert isinstance(TECHNIQUE.check(parts, describe(), TECHNIQUE.options()), Applies)
    x, y = torch.randn(64, 250, device="cuda"), torch.randint(0, 5001, (64,), device="cuda")
    found = []
    for aligns in (False, True):
        if aligns:
            TECHNIQUE.apply(parts, TECHNIQUE.options())
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
