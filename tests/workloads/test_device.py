"""`?device=...`: what is parsed, what is refused, and what is moved. The meta device stands in for a GPU."""

import pytest
import torch
from torch import nn

from whet.core.signature import Outputs
from whet.core.workload import Quality, TrainingWorkload, Workload
from whet.core.workload.training import Trainer
from whet.errors import TargetError
from whet.workloads import resolve, target_name
from whet.workloads.device import on_device
from whet.workloads.target import resolve_any
from whet.workloads.target_name import TargetName

MODEL = """
import torch

def build(device="cpu"):
    width = 2 if device == "cpu" else 3  # to see that it was told
    return torch.nn.Linear(4, width, device=device), torch.zeros(3, 4, device=device)

def plain():
    return torch.nn.Linear(4, 2), torch.zeros(3, 4)
"""


@pytest.fixture
def has_gpu(monkeypatch) -> None:
    """A device called cuda, which is torch's meta device: tensors have a place there and no values."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(target_name, "DEVICES", ("cpu", "cuda", "meta"))


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("digits-cnn", ("digits-cnn", None)),
        ("digits-cnn?device=cpu", ("digits-cnn", "cpu")),
        ("hf:DIR?batch=8&device=cpu&seq=4", ("hf:DIR?batch=8&seq=4", "cpu")),
        ("hf:DIR?batch=8", ("hf:DIR?batch=8", None)),
        ("m.py:build?device=cuda", ("m.py:build", "cuda")),
        ("m.py:build?&device=cuda&device=cpu", ("m.py:build", "cpu")),
        ("digits-cnn?", ("digits-cnn?", None)),
    ],
)
def test_the_device_is_split_off(has_gpu, target, found) -> None:
    named = TargetName.read(target)
    assert (named.address, named.device) == found


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("docs-gpt?device=cuda:1", "CUDA_VISIBLE_DEVICES"),
        ("docs-gpt?device=tpu", "one of cpu, cuda"),
        ("docs-gpt?device=", "one of cpu, cuda"),
        ("docs-gpt?batch=8", r"takes one option: docs-gpt\?device=cuda"),
    ],
)
def test_what_is_no_device_is_refused(target, said) -> None:
    with pytest.raises(TargetError, match=said):
        resolve(target)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_no_gpu_is_said() -> None:
    with pytest.raises(TargetError, match="needs a GPU that torch can use"):
        resolve("docs-gpt?device=cuda")


def test_a_function_places_the_model_itself_or_has_it_moved(has_gpu, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "placed.py").write_text(MODEL)
    assert resolve("placed.py:plain?device=meta").model.weight.device.type == "meta"
    assert resolve("placed.py:build?device=meta").model.out_features == 3
    assert resolve("placed.py:build?device=cpu", {"batch": 5}).inputs[0].shape == (5, 4)


def test_model_batches_and_what_the_quality_gives_are_moved() -> None:
    quality = Quality("mean", lambda predict: float(predict(x=torch.ones(2, 4)).logits.device.type == "cpu"))
    batch = {"x": torch.ones(2, 4), "flag": True}
    workload = Workload(model=nn.Linear(4, 2), inputs=[batch], calibration=[(torch.ones(1, 4),)], quality=quality)
    moved = on_device(workload, "meta")
    assert moved.model.weight.device.type == "meta"
    assert moved.inputs[0]["x"].device.type == "meta"
    assert moved.inputs[0]["flag"] is True
    assert moved.calibration[0][0].device.type == "meta"
    seen = []

    def predict(x):
        seen.append(x.device.type)
        return Outputs(logits=torch.zeros(2))

    assert moved.quality is not None
    assert moved.quality.measure(predict) == 1.0
    assert seen == ["meta"]


def test_a_workload_that_lies_there_keeps_its_quality() -> None:
    workload = Workload(model=nn.Linear(4, 2), inputs=[torch.ones(2, 4)], quality=Quality("q", lambda predict: 1.0))
    assert on_device(workload, "cpu") is workload


TRAINING = """
import torch
import torch.nn.functional as F
from whet import Quality, TrainingWorkload
from whet.core.workload.training import OutputLoss

def build():
    data = [(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 3
    return TrainingWorkload(
        model=torch.nn.Linear(4, 2),
        loss=OutputLoss(F.cross_entropy),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batches=torch.utils.data.DataLoader(data, batch_size=None),
        evaluation=Quality("loss", lambda predict: float(predict(torch.ones(2, 4)).shape[1])),
    )
"""


def test_the_batches_of_a_training_follow_its_model(has_gpu, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    workload = resolve_any("train.py:build?device=meta")
    assert isinstance(workload, TrainingWorkload)
    assert workload.model.weight.device.type == "meta"
    assert isinstance(workload.batches, torch.utils.data.DataLoader), "techniques know it"
    trainer = Trainer(workload)
    assert trainer.step().device.type == "meta"
    assert trainer.num_samples == 2
