"""Which batch sizes a saved variant takes: any, where that was verified, else one, with the reason."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet import Quality
from whet.core.recipe import Step
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import ArtefactError, InputsError, TargetError
from whet.techniques import TABLE
from whet.tuner import batch as module
from whet.tuner.batch import make, with_free_batch

RECIPES = {
    "program": [],
    "compile": [Step(technique="inductor", options={"engine": "jit"})],
    "inductor": [Step(technique="inductor", options={"engine": "package"})],
    "openvino": [Step(technique="openvino", options={"precision": "f32"})],
    "openvino int8": [Step(technique="openvino", options={"precision": "int8"})],
    "onnxruntime": [Step(technique="onnxruntime", options={"precision": "f32"})],
    "onnxruntime int8": [Step(technique="onnxruntime", options={"precision": "int8"})],
    "int8_dynamic": [Step(technique="int8_dynamic", options={"rest": "float32"})],
}


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, *args: Tensor, **kwargs: Any) -> Any:
        return self.function(self.linear, *args, **kwargs)


def examined_of(function: Callable[..., Any], *inputs: Any) -> ExaminedWorkload:
    return examine(Workload(model=Lambda(function).eval(), inputs=list(inputs) or [torch.randn(4, 8)] * 2))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()


@pytest.mark.parametrize("recipe", ["program", "openvino", "openvino int8", "onnxruntime", "onnxruntime int8"])
def test_batches_of_two_sizes_free_the_size_of_images(recipe: str, tmp_path: Path) -> None:
    for step in RECIPES[recipe]:
        pytest.importorskip(step.technique)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    square, wide = torch.randn(2, 3, 12, 12), torch.randn(2, 3, 10, 20)
    examined, batch = with_free_batch(examine(Workload(model=model, inputs=[square], calibration=[square, wide])))
    made = make(examined, RECIPES[recipe], tmp_path / "model", batch)
    other = torch.randn(3, 3, 17, 9)
    with torch.no_grad():
        wanted, found = model(other), made.artefact(other)
    assert torch.allclose(found, wanted, atol=0.1 if "int8" in recipe else 1e-5)
    fixed, batch = with_free_batch(examine(Workload(model=model, inputs=[square])))
    assert fixed.signature.inputs[0].shape == (None, 3, 12, 12)
    with pytest.raises(InputsError, match="a size is free where the batches"):
        fixed.signature.flatten([other], {})


@pytest.mark.parametrize(
    ("recipe", "size"), [*((name, 4) for name in RECIPES), ("program", 1), ("openvino", 1), ("onnxruntime", 1)]
)
def test_any_batch_is_the_default_through_every_runtime(recipe: str, size: int, tmp_path: Path) -> None:
    for step in RECIPES[recipe]:
        pytest.importorskip("torchao" if "int8" in step.technique else "torch")
        pytest.importorskip(step.technique if step.technique in ("openvino", "onnxruntime") else "torch")
    model = network()
    examined = examine(Workload(model=model, inputs=[torch.randn(size, 3, 8, 8) for _ in range(3)]))
    assert examined.signature.inputs[0].shape == (size, 3, 8, 8)
    free, found = with_free_batch(examined)
    assert (found.freed, found.reason) == ((0,), "")
    made = make(free, RECIPES[recipe], tmp_path / "artefact", found)
    assert made.fixed_batch is None and not [note for note in made.notes if "batch" in note]
    assert "takes=(float32[any, 3, 8, 8])" in repr(made.artefact)
    for other in (1, 2, size, size + 1, 9):
        x = examined.workload.inputs[0][torch.arange(other) % size]
        tolerance = 0.1 if "int8" in recipe else 1e-4
        torch.testing.assert_close(made.artefact(x), model(x).detach(), rtol=tolerance, atol=tolerance)


def test_a_model_that_takes_one_batch_size_says_so(tmp_path: Path) -> None:
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x).view(4, 2, 4)))
    assert found.freed == () and found.reason.startswith("the model does not take a batch of 1: shape '[4, 2, 4]'")
    made = make(examined, [], tmp_path / "artefact", found)
    assert made.fixed_batch == 4
    assert made.notes == (f"fixed to batch 4: {found.reason}",)
    assert made.artefact.manifest.notes == list(made.notes)
    with pytest.raises(InputsError, match=r"float32\[4, 8\]"):
        made.artefact(torch.randn(5, 8))


def test_constants_that_follow_the_batch_fix_it() -> None:
    _, found = with_free_batch(examined_of(lambda linear, x: (linear(x), x.shape[0])))
    assert found.reason == "the model does not take a batch of 1: it returns other constants then"


def test_inputs_of_other_lengths_and_masks_of_one_row_stay_as_they_are() -> None:
    inputs = {"x": torch.randn(4, 8), "table": torch.randn(3, 8), "mask": torch.zeros(1, 8), "scale": torch.tensor(2.0)}
    free, found = with_free_batch(
        examined_of(lambda linear, x, table, mask, scale: linear(x + mask) * scale + table.sum(), inputs)
    )
    assert found.freed == (0,)
    assert [a.shape for a in free.signature.inputs] == [(None, 8), (3, 8), (1, 8), ()]


def test_a_technique_that_needs_one_size_is_fixed_to_it_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed_only(candidate: Any, options: Any) -> Any:
        if candidate.signature.is_dynamic:
            raise TargetError("it wants to know every size")
        return candidate

    monkeypatch.setitem(TABLE, "channels_last", replace(TABLE["channels_last"], apply=fixed_only))
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x)))
    made = make(examined, [Step(technique="channels_last")], tmp_path / "artefact", found)
    assert made.fixed_batch == 4
    assert made.notes == ("fixed to batch 4: it wants to know every size",)
    assert str(made.artefact.signature) == "(float32[4, 8])"


def test_a_variant_that_answers_other_sizes_wrongly_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = module.Artefact.run

    def wrong_for_others(self: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = run(self, *tensors)
        return outputs if tensors[0].shape[0] != 5 else tuple(2 * y for y in outputs)

    monkeypatch.setattr(module.Artefact, "run", wrong_for_others)
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x)))
    made = make(examined, [], tmp_path / "artefact", found)
    assert made.notes == ("fixed to batch 4: the variant answers a batch of 5 differently from the model",)
    varying = examined_of(lambda linear, x: linear(x), torch.randn(4, 8), torch.randn(6, 8))
    with pytest.raises(TargetError, match="answers a batch of 5 differently from the model"):
        make(*with_free_batch(varying)[:1], [], tmp_path / "other", with_free_batch(varying)[1])


def test_another_path_for_a_batch_of_one_is_refused_and_said(tmp_path: Path) -> None:
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x) if x.shape[0] > 1 else -linear(x)))
    made = make(examined, [], tmp_path / "artefact", found)
    assert made.fixed_batch is None
    assert made.notes == ("a batch of 1 is refused: the model takes another path there",)
    with pytest.raises(ArtefactError, match="size 0 of input 0 >= 2"):
        made.artefact(torch.randn(1, 8))


def test_another_path_beyond_the_tuned_size_fixes_it(tmp_path: Path) -> None:
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x) if x.shape[0] < 5 else -linear(x)))
    made = make(examined, [], tmp_path / "artefact", found)
    assert made.fixed_batch == 4 and "holds only where" in made.notes[0]


def test_whole_numbers_are_compared_row_by_row(tmp_path: Path) -> None:
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x).argmax(-1)))
    assert make(examined, RECIPES["int8_dynamic"], tmp_path / "artefact", found).fixed_batch in (None, 4)


def test_sizes_that_vary_already_need_nothing() -> None:
    measure = Quality("rows", lambda predict: float(predict(torch.randn(7, 8)).shape[0]))
    examined = examine(Workload(model=nn.Linear(8, 8), inputs=[torch.randn(4, 8)], quality=measure))
    free, found = with_free_batch(examined)
    assert free is examined and found.freed == () and found.reason == ""


def test_a_variant_that_a_free_batch_breaks_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler may make nonsense of a free size only; errors at the tuned size would hide those at other sizes."""
    examined, found = with_free_batch(examined_of(lambda linear, x: linear(x)))
    original = module.build

    def build(examined: ExaminedWorkload, steps: Any) -> Any:
        candidate = original(examined, steps)
        if examined.signature.is_dynamic:
            with torch.no_grad():
                for weight in candidate.module.parameters():
                    weight.mul_(-3.0)
        return candidate

    examined = replace(examined, workload=replace(examined.workload, model=copy.deepcopy(examined.workload.model)))
    monkeypatch.setattr(module, "build", build)
    made = make(examined, [], tmp_path / "artefact", found)
    assert made.fixed_batch == 4
    assert "built with a free batch, the variant answers its own inputs wrongly" in made.notes[-1]
