"""Optimisers: what they keep is what PyTorch's keep, what Muon computes is counted, and a plan takes their names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from known_models import LLAMA_8B, h100s
from torch.utils.flop_counter import FlopCounterMode

from whet.errors import OptionError
from whet.planner.layout import Bytes, Layout, OptimizerName, Work
from whet.planner.optimizers import OPTIMIZERS, bytes_of, update_operations
from whet.planner.planning import plan
from whet.planner.predict import predict
from whet.planner.whet_train import train_section

HIDDEN, INNER = 256, 1024
SMALL = LLAMA_8B.model_copy(
    update={"num_layers": 2, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_heads": 4, "num_kv_heads": 4,
            "head_size": 64, "vocab_size": 512}
)  # fmt: skip


def layer_matrix() -> torch.nn.Parameter:
    torch.manual_seed(0)
    found = torch.nn.Parameter(torch.randn(HIDDEN, INNER))
    found.grad = torch.randn_like(found)
    return found


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", lambda weights: torch.optim.AdamW(weights)),
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9)),
        ("adafactor", lambda weights: torch.optim.Adafactor(weights)),
        ("muon", lambda weights: torch.optim.Muon(weights)),
    ],
)
def test_the_state_of_a_layers_matrix_is_what_pytorch_keeps(
    name: OptimizerName, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    weight = layer_matrix()
    optimizer = make([weight])
    optimizer.step()
    kept = sum(one.nbytes for one in optimizer.state[weight].values() if isinstance(one, torch.Tensor) and one.ndim)
    found = OPTIMIZERS[name]
    each = found.moments if found.of_matrices is None else found.of_matrices
    assert each * HIDDEN * INNER + found.per_row * (HIDDEN + INNER) == kept


def test_the_bytes_of_a_parameter() -> None:
    """AdamW by Rajbhandari et al., 2020, figure 1, and 8 bits by Dettmers et al., 2021; 16 bits have a copy beside."""
    assert bytes_of(LLAMA_8B, "bfloat16", "adamw") == Bytes(parameter=2, gradient=4, state=12)
    assert bytes_of(LLAMA_8B, "float32", "adamw") == Bytes(parameter=4, gradient=4, state=8)
    assert bytes_of(LLAMA_8B, "bfloat16", "adamw_8bit").state == pytest.approx(6.03, abs=0.01)
    # Two tables of 128,256 x 4,096 of Llama's 8.03e9 parameters stay with AdamW.
    share = 2 * 128_256 * 4096 / 8.03e9
    assert bytes_of(LLAMA_8B, "float32", "muon").state == pytest.approx(4 + 4 * share, rel=1e-3)
    assert bytes_of(LLAMA_8B, "float32", "adafactor").state < 0.01


def test_the_operations_of_muon_are_those_that_pytorch_counts() -> None:
    optimizer = torch.optim.Muon([layer_matrix()])
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert update_operations(SMALL, "muon") * HIDDEN * INNER == pytest.approx(counter.get_total_flops())
    assert update_operations(SMALL, "adamw") == 0


def test_less_state_is_less_memory_and_a_shorter_update() -> None:
    work, cluster = Work(global_batch_size=64, sequence_length=2048), h100s(8)

    def of(name: OptimizerName) -> tuple[float, float]:
        layout = Layout(shard=8, zero_stage=1, optimizer=name, bytes=bytes_of(LLAMA_8B, "bfloat16", name))
        found = predict(LLAMA_8B, cluster, layout, work)
        return found.memory.optimizer, found.step.optimizer

    adamw, small, sgd, muon = (of(name) for name in ("adamw", "adamw_8bit", "sgd", "muon"))
    assert small[0] < sgd[0] < adamw[0] and small[1] < sgd[1] < adamw[1]
    assert muon[0] < adamw[0] and muon[1] > adamw[1]
    # Muon's products cost as much as a few hundred tokens a chip, of 16,384 here.
    assert muon[1] < 0.1 * predict(LLAMA_8B, cluster, Layout(shard=8, zero_stage=1), work).step_s.value


@pytest.fixture
def model(tmp_path: Path) -> Path:
    keys = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    return tmp_path


def test_a_plan_takes_the_optimiser_and_the_software(model: Path) -> None:
    adamw, sgd = (plan(model, gpus=8, optimizer=name, scaling=False) for name in ("adamw", "sgd"))
    assert sgd.best.layout.bytes.state == 8 and adamw.best.layout.bytes.state == 12
    assert sgd.runnable is not None and 'name = "sgd"' in sgd.runnable.train.toml
    assert [any("with sgd" in line for line in one.outside) for one in (sgd, adamw)] == [True, False]
    assert any("Sutskever" in line for line in sgd.assumptions)
    compiled = plan(model, gpus=8, compiled=True, scaling=False)
    assert compiled.best.prediction.step_s.value < adamw.best.prediction.step_s.value
    assert compiled.runnable is not None and "compile" in compiled.runnable.train.recipe
    other = plan(model, gpus=8, software="megatron", scaling=False)
    assert other.best.layout.software == "megatron-2024"
    assert any("megatron-2024 reaches" in line for line in other.assumptions)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": "adamw8bit"}, "--optimizer: there is no optimizer 'adamw8bit'; did you mean adamw_8bit?"),
        ({"optimizer": "zzz"}, "--optimizer: there is no optimizer 'zzz'; whet knows adafactor, adamw"),
        ({"software": "megatron-lm"}, "--software: there is no software 'megatron-lm'; did you mean megatron?"),
    ],
)
def test_other_names_are_refused_with_the_nearest(model: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        plan(model, gpus=8, **given)  # type: ignore[arg-type]
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(optimizer="lion"), "whet has no Lion"),
        (Layout(optimizer="muon", tensor=2), "muon with divided matrices"),
        (Layout(optimizer="adafactor", shard=2, zero_stage=1), "adafactor with zero_stage 1"),
        (Layout(optimizer="adamw_8bit", shard=2, zero_stage=3), "adamw_8bit with zero_stage 2 or 3"),
        (Layout(optimizer="muon", pipeline=2), "muon in a pipeline"),
    ],
)
def test_what_whet_train_cannot_update_is_said(layout: Layout, said: str) -> None:
    work = Work(global_batch_size=8, sequence_length=128)
    found = train_section(layout, work, h100s(layout.chips), "llama")
    assert any(said in why for why in found.missing)


def test_an_optimiser_of_a_recipe_is_in_it() -> None:
    found = train_section(
        Layout(optimizer="adafactor", replicate=2), Work(global_batch_size=8, sequence_length=128), h100s(2), "llama"
    )
    assert found.runs and "adafactor" in found.recipe
