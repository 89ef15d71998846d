"""Two steps of each training: that it runs from start to finish, and writes what its workload reads."""

import pytest
import torch
from benchmarks.built_in_weights.__main__ import TRAINERS, WITH_OWN_OPTIONS, main
from benchmarks.built_in_weights.loop import Schedule, fit

from whet.workloads import BUILTIN, BUILTIN_STREAMS, digits_cnn, docs_encoder, docs_gpt, docs_ssm

pytestmark = pytest.mark.thorough

pytest.importorskip("sklearn")
pytest.importorskip("tokenizers")

BUILD = {
    "digits-cnn": digits_cnn.build,
    "docs-encoder": docs_encoder.build,
    "docs-gpt": docs_gpt.build,
    "docs-ssm": docs_ssm.build,
}


def test_every_builtin_can_be_trained():
    assert set(TRAINERS) == set(BUILTIN)
    assert set(WITH_OWN_OPTIONS) == set(BUILTIN_STREAMS)


@pytest.mark.parametrize("name", TRAINERS)
def test_trains(tmp_path, capsys, name):
    assert main([name, "--steps", "1", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{name}: held-out" in said
    assert "baseline" in said
    assert BUILD[name](tmp_path).name == name


def test_fit_lowers_the_loss():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)

    def loss(step):
        return (model(x).float() - y).square().mean()

    before = loss(0).item()
    fit(model, loss, Schedule(steps=100, learning_rate=0.05, weight_decay=0.0, warmup=5))
    assert loss(0).item() < before / 10
    assert not model.training
