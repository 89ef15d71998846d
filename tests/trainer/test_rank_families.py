"""Each family of models and each kind of training on two processes: the run of one, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import test_classification
import test_hybrid
import tomli_w
from family_runs import each
from many import Group
from tiny_run import base_model, gpt2, tables, teacher_model

pytestmark = pytest.mark.thorough
PLANS = ["parallel.zero_stage=0", "parallel.zero_stage=1", "parallel.zero_stage=3"]
SHORT: dict[str, Any] = {
    "steps": 4,
    "batch": {"global_batch_size": 5, "micro_batch_size": 5},
    "checkpoints": {"save_interval": 4},
    "evaluation": {"eval_interval": 2, "num_rows": 5},
    "schedule": {"warmup_steps": 0},
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2}
WIDE = {**SIZES, "intermediate_size": 48, "num_attention_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {**WIDE, "model_type": "qwen3", "head_dim": 16},
    "mamba": {**SIZES, "model_type": "mamba", "state_size": 4},
    "mamba2": {**SIZES, "model_type": "mamba2", "num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8},
    "lfm2": {**test_hybrid.SIZES, "model_type": "lfm2", **test_hybrid.KINDS["lfm2"]},
    "ltm": {**WIDE, "model_type": "ltm", "memory_slots": 4, "attention_block_size": 8},
}
REFUSED = {("prune", PLANS[2]): "prune"}


def configurations(place: Path) -> dict[str, dict[str, Any]]:
    base, teacher = base_model(place), teacher_model(place)
    found = {name: {**tables(place, **SHORT), "model": model} for name, model in MODELS.items()}
    further = tables(place, **SHORT, data={"tokenizer": str(base)})
    found["gpt2"] = {**further, "model": {"directory": str(without_dropout(gpt2(place, base)))}}
    found["lora"] = {**further, "model": {"directory": str(base)}, "lora": {"r": 4}}
    found["distill"] = {**further, "model": tables(place)["model"], "distill": {"teacher": str(teacher)}}
    found["prune"] = {**tables(place, **SHORT), "prune": {"amount": 0.5, "interval": 1}}
    found["dropped tail"] = tables(place, **{**SHORT, "evaluation": {"eval_interval": 2, "num_rows": 3}})
    found["dropped tail"]["batch"] = {"global_batch_size": 5, "micro_batch_size": 1}
    test_classification.written(place / "train.jsonl")
    model = without_dropout(test_classification.encoder(place))
    found["bert"] = test_classification.config(place, model, **SHORT).model_dump(mode="json", exclude_unset=True)
    return found


def without_dropout(directory: Path) -> Path:
    """Have a model of transformers draw nothing while it trains: two processes draw other numbers than one."""
    file = directory / "config.json"
    keys = json.loads(file.read_text())
    file.write_text(json.dumps({name: 0.0 if "drop" in name and value else value for name, value in keys.items()}))
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What one process found, and what two did."""
    place = tmp_path_factory.mktemp("families")
    files = {}
    for name, made in configurations(place).items():
        files[name] = str(place / f"{name}.toml")
        Path(files[name]).write_text(tomli_w.dumps({**made, "threads": 1}))
    found = []
    for world_size, plans, group in ((1, [""], None), (2, PLANS, str(place / "meeting"))):
        with Group(each, world_size, files, plans, group) as processes:
            answers = processes.answers()
        assert not any(fault for fault, _ in answers), answers
        found.append(answers[0][1])
    return found[0], found[1]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", [*MODELS, "gpt2", "lora", "distill", "prune", "dropped tail", "bert"])
def test_a_training_is_that_of_one_process_or_refused(
    runs: tuple[dict[str, Any], dict[str, Any]], name: str, plan: str
) -> None:
    alone, found = runs[0][f"{name} "], runs[1][f"{name} {plan}"]
    if refusal := REFUSED.get((name, plan)):
        assert isinstance(found, str) and refusal in found
        return
    assert isinstance(found, list), found
    assert [line["step"] for line in found] == [line["step"] for line in alone]
    for mine, theirs in zip(found, alone, strict=True):
        for figure in ("loss", "held_out_loss", "gradient_norm"):
            assert mine[figure] == (None if theirs[figure] is None else pytest.approx(theirs[figure], rel=2e-5)), figure
        assert mine["tokens"] == theirs["tokens"]
