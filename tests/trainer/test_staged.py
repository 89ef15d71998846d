"""Runs whose layers several processes share are those of one process, whichever of them saved a checkpoint."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from many import on_ranks
from runs_together import drawn, runs
from safetensors.torch import load_file
from tiny_run import tables
from torch import Tensor

from whet.core.recipe import Recipe, Step
from whet.errors import WhetError
from whet.parallel.plan import ParallelPlan
from whet.parallel.ranks import Ranks
from whet.trainer.config import checked_config
from whet.trainer.plan_checks import check_staged
from whet.trainer.setup import set_up

PIPELINE: dict[str, Any] = {"pipeline_parallel_degree": 2, "pipeline_micro_batches": 2}


def _tables(place: Path, out: str, **changes: Any) -> dict[str, Any]:
    return tables(
        place,
        **{
            "out": str(place / out),
            "steps": 6,
            "model": {"num_hidden_layers": 3},
            "data": {"separator": "\n", "pack": True},
            "optimizer": {"lr": 1e-3, "eps": 1e-4},  # with Adam's usual eps, tiny gradients would make rounding large
            "schedule": {"kind": "constant", "warmup_steps": 0},
            "evaluation": {"eval_interval": 3, "num_rows": 11, "prompt": "the ", "num_sampled": 4, "temperature": 0},
            **changes,
        },
    )


def _log(place: Path, out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def _model(place: Path, out: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(place / out / "model" / "model.safetensors")
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with runs of one process, of two, and of one that two go on with, and the other way round."""
    place = tmp_path_factory.mktemp("staged")
    alone = Ranks()
    runs(alone, [(_tables(place, "one"), False), (_tables(place, "one-two", steps=3), False)])
    whole = _tables(place, "two", parallel=PIPELINE)
    begun = _tables(place, "two-one", steps=3, parallel=PIPELINE)
    gone_on = _tables(place, "one-two", parallel={**PIPELINE, "pipeline_schedule": "gpipe"})
    assert on_ranks(runs, 2, [(whole, False), (begun, False), (gone_on, True)]) == [[6, 3, 6]] * 2
    runs(alone, [(_tables(place, "two-one"), True)])
    return place


@pytest.mark.parametrize("out", ["two", "two-one", "one-two"])
def test_a_run_is_that_of_one_process(place: Path, out: str) -> None:
    one, found = _log(place, "one"), _log(place, out)
    assert [line["step"] for line in found] == [line["step"] for line in one]
    for line, known in zip(found, one, strict=True):
        assert line["loss"] == pytest.approx(known["loss"], rel=1e-6)
        assert line["gradient_norm"] == pytest.approx(known["gradient_norm"], rel=1e-5)
        assert line["tokens"] == known["tokens"]
        assert line.get("sample") == known.get("sample")
    scored = [line for line in one if "held_out_loss" in line]
    assert [line["step"] for line in scored] == [3, 6]
    for line in scored:
        assert found[line["step"] - 1]["held_out_loss"] == pytest.approx(line["held_out_loss"], rel=1e-6)
    assert one[-1]["sample"].startswith("the ")
    weights, known = _model(place, "one"), _model(place, out)
    assert weights.keys() == known.keys()
    for name, weight in weights.items():
        assert (weight - known[name]).abs().max() < 1e-5, name


def test_processes_save_each_parameter_once(place: Path) -> None:
    step = place / "two" / "checkpoints" / "step-00000006"
    names = [name for file in sorted(step.glob("model*.safetensors")) for name in load_file(file)]
    assert len(names) == len(set(names))
    alone = place / "one" / "checkpoints" / "step-00000006" / "model.safetensors"
    assert set(names) == set(load_file(alone))


def test_stages_that_go_on_with_a_run_of_one_process_draw_other_numbers() -> None:
    (alone, first), (_, beside), (_, behind), (_, beside_that) = on_ranks(
        drawn, 4, {**PIPELINE, "tensor_parallel_degree": 2}
    )
    assert first == beside == alone
    assert behind == beside_that != alone


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": True}, "bf16_parameters of the recipe is not made for models whose layers are shared"),
        ({"lora": {"r": 2}}, r"\[lora\] needs all layers"),
        ({"prune": {"amount": 0.5}}, r"\[prune\] needs all layers"),
    ],
)
def test_what_needs_the_whole_model_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    if "recipe" in changes:
        changes = {"recipe": str(tmp_path / "recipe.toml")}
        Recipe(kind="training", steps=(Step(technique="bf16_parameters"),)).write(tmp_path / "recipe.toml")
    given = checked_config(tables(tmp_path, **changes), "test")
    setup = set_up(given.model_copy(update={"lora": None}), lambda line: None)  # LoRA itself needs a trained model
    with pytest.raises(WhetError, match=told):
        check_staged(replace(setup, config=given), ParallelPlan(**PIPELINE))
