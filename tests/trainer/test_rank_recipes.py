"""Each technique of training under each stage of ZeRO: right, or refused by name before the first step."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import tomli_w
from family_runs import each
from many import Group

from whet.core.recipe import Recipe, Step
from whet.techniques.mechanisms.uses import Use
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import TrainingStage

NEEDS = {"lamb": "pytorch_optimizer"}  # packages
MISSING = [name for name, package in NEEDS.items() if importlib.util.find_spec(package) is None]
NAMES = [name for name in TRAINING_TABLE if name not in ("compile", *MISSING)]  # compile takes minutes
ROUGH = {"autocast": 2e-3, "fp8": 2e-2, "autocast_fp16": 2e-3, "bf16_parameters": 2e-2, "adamw_8bit": 1e-4}
STAGES = (0, 1, 2, 3)
MOST_S = 1200.0  # for all techniques under one stage
pytestmark = pytest.mark.timeout(5 * MOST_S)
NOT_SHARDED = {"adamw_8bit": 2, "chunked_loss": 3}  # from which stage on they are refused


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What each technique led to, by stage; -1 is one process."""
    return outcomes(tmp_path_factory.mktemp("recipes"), NAMES)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    return outcomes(tmp_path_factory.mktemp("compiled"), ["compile"])


def outcomes(place: Path, names: list[str]) -> dict[int, dict[str, Any]]:
    """Return what each technique led to, by stage; -1 is one process."""
    files = {name: written(place, name) for name in names}
    with Group(each, 1, files, [""], None) as group:
        found = {-1: answered(group)}
    for stage in STAGES:  # each in processes of its own, since some techniques change a whole process
        with Group(each, 2, files, [f"parallel.zero_stage={stage}"], str(place / "meeting")) as group:
            found[stage] = answered(group)
    return found


def written(place: Path, name: str) -> str:
    """Write the configuration of a short run with one technique; one whose optimiser updates early clips nothing."""
    recipe = place / f"{name}-recipe.toml"
    Recipe(kind="training", steps=(Step(technique=name, options={}),)).write(recipe)
    tables = tiny_run.tables(
        place,
        steps=3,
        model={"hidden_size": 64, "intermediate_size": 128, "vocab_size": 1100},
        batch={"global_batch_size": 6},
        optimizer={"lr": 1e-3, "max_norm": 0.0 if name == "optimizer_in_backward" else 1.0},
        schedule={"warmup_steps": 0},
        checkpoints={"save_interval": 2},
        recipe=str(recipe),
    )
    file = place / f"{name}.toml"
    file.write_text(tomli_w.dumps({**tables, "threads": 1}))
    return str(file)


def answered(group: Group) -> dict[str, Any]:
    """Return what the run of each technique came to: its losses, or the error that refused it."""
    answers = group.answers(MOST_S)
    assert not any(fault for fault, _ in answers), answers
    found: dict[str, Any] = answers[0][1]
    return {
        name.split()[0]: one if isinstance(one, str) else [line["loss"] for line in one] for name, one in found.items()
    }


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", [*NAMES, *MISSING])
def test_a_technique_is_right_or_refused(runs: dict[int, dict[str, Any]], name: str, stage: int) -> None:
    if name in MISSING:
        pytest.skip(f"{name} needs {NEEDS[name]}")
    check(runs, name, stage)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_compile_is_right_or_refused(compiled: dict[int, dict[str, Any]], stage: int) -> None:
    check(compiled, "compile", stage)


def check(runs: dict[int, dict[str, Any]], name: str, stage: int) -> None:
    """Hold what a technique led to against one process."""
    alone, found = runs[-1][name], runs[stage][name]
    technique = TRAINING_TABLE[name]
    use = Use.DDP if stage < 2 else Use.FSDP2
    must_refuse = use in technique.refuses or (stage == 1 and technique.stage is TrainingStage.OPTIMIZER)
    must_refuse = must_refuse or stage >= NOT_SHARDED.get(name, 4)
    if isinstance(alone, str):  # it does not apply to this model or machine
        assert f"{name} does not apply here" in alone
        assert isinstance(found, str) and name in found
    elif name == "accumulation":  # each process weighs its parts by itself
        assert found == pytest.approx(alone, rel=2e-6)
    elif must_refuse:
        assert isinstance(found, str) and name in found, found
    else:
        assert found == pytest.approx(alone, rel=ROUGH.get(name, 2e-6)), found
