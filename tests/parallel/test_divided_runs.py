"""A run of whet train whose processes share matrices goes on where one process began, and the other way round."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from many import on_ranks
from run_jobs import all_went, went
from safetensors.torch import load_file
from tiny_run import tables

from whet.core.recipe import Recipe, Step
from whet.errors import OptionError, RecipeError
from whet.parallel.division import Division
from whet.parallel.plan import degrees_of
from whet.parallel.ranks import Ranks
from whet.trainer.config import checked_config
from whet.trainer.setup import set_up
from whet.trainer.together import together

# 31 tokens of a row are no multiple of the degrees.
CHANGES: dict[str, Any] = {
    "steps": 4,
    "model": {"model_type": "qwen3", "head_dim": 16},
    "data": {"sequence_length": 31},
    "batch": {"global_batch_size": 6, "micro_batch_size": 3},
    "evaluation": {"eval_interval": 2, "num_rows": 3, "prompt": "t", "num_sampled": 3},
    "checkpoints": {"save_interval": 2},
}
TWO = {"tensor_parallel_degree": 2}
SHARDED = {**TWO, "zero_stage": 3}
GRID = {**TWO, "pipeline_parallel_degree": 2, "pipeline_micro_batches": 3}
CUBE = {**GRID, "zero_stage": 2, "pipeline_micro_batches": 2, "pipeline_schedule": "gpipe"}


def _tables(place: Path, name: str, parallel: dict[str, Any], dropout: float) -> dict[str, Any]:
    changes = {**CHANGES, "optimizer": {"dropout": dropout}, "parallel": parallel}
    return tables(place, **changes, out=str(place / name))


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def _check_same(run: Path, expected: Path) -> None:
    lines, known = _lines(run), _lines(expected)
    assert [line["step"] for line in lines] == [line["step"] for line in known] == [1, 2, 3, 4]
    for line, other in zip(lines, known, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert line["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-5)
        assert line.get("held_out_loss", 0) == pytest.approx(other.get("held_out_loss", 0), rel=1e-6)
        assert line.get("sample") == other.get("sample")
    weights, others = (load_file(one / "model" / "model.safetensors") for one in (run, expected))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("world_size", "parallel", "dropout"),
    [
        (2, TWO, 0.1),
        (4, GRID, 0.0),
        pytest.param(4, SHARDED, 0.0, marks=pytest.mark.slow),
        pytest.param(8, CUBE, 0.0, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_divided_otherwise(
    tmp_path: Path, world_size: int, parallel: dict[str, Any], dropout: float
) -> None:
    def divided(name: str) -> dict[str, Any]:
        return _tables(tmp_path, name, parallel, dropout)

    alone, other = tmp_path / "alone", tmp_path / "other"
    went(Ranks(), _tables(tmp_path, "alone", {}, dropout))
    runs = [(divided("other"), None), (divided("from-alone"), str(alone)), (divided("from-other"), str(other))]
    [_, from_alone, _] = on_ranks(all_went, world_size, runs)[0]
    assert "going on after step 2 of 4" in from_alone
    said = went(Ranks(), _tables(tmp_path, "then-alone", {}, dropout), str(other))
    assert "going on after step 2 of 4" in said
    for name in ("other", "from-alone", "then-alone"):
        _check_same(tmp_path / name, alone)
    assert [line["loss"] for line in _lines(tmp_path / "from-other")] == [line["loss"] for line in _lines(other)]


def test_what_needs_whole_matrices_is_refused_by_name(tmp_path: Path) -> None:
    Recipe(kind="training", steps=(Step(technique="chunked_loss"),)).write(tmp_path / "recipe.toml")
    cpu, two = torch.device("cpu"), Ranks(world_size=2)
    for changes, kind, said in (
        ({"recipe": str(tmp_path / "recipe.toml")}, RecipeError, "chunked_loss does not bear matrices that processes"),
        ({"prune": {"amount": 0.5}}, OptionError, r"\[prune\] of single weights needs whole matrices"),
        ({"parallel": {**TWO, "async_tensor_parallel": True}}, OptionError, "add the technique compile to the recipe"),
    ):
        made = {**_tables(tmp_path, "refused", TWO, 0.0), **changes}
        setup = set_up(checked_config(made, "test"), lambda line: None)
        plan = setup.config.parallel
        with pytest.raises(kind, match=said):
            together(setup, setup.workload(), Division(plan, two, degrees_of(plan, 2), cpu))
