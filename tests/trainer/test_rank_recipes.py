"""Each technique of training under each stage of ZeRO: right, or refused by name before the first step."""

from typing import Any

import pytest
from many import Group
from recipe_runs import with_each

from whet.techniques.mechanisms.uses import Use
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import TrainingStage

pytestmark = pytest.mark.thorough
NAMES = [name for name in TRAINING_TABLE if name not in ("lamb", "compile")]  # lamb needs a package, compile minutes
ROUGH = {"autocast": 2e-3, "fp8": 2e-2, "autocast_fp16": 2e-3, "bf16_parameters": 2e-2, "adamw_8bit": 1e-4}
STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What each technique led to, by stage; -1 is one process."""
    place = tmp_path_factory.mktemp("recipes")
    with Group(with_each, 1, str(place), NAMES, 0, None) as group:
        found = {-1: answered(group)}
    for stage in STAGES:
        (place / str(stage)).mkdir()
        with Group(with_each, 2, str(place / str(stage)), NAMES, stage, "meeting") as group:
            found[stage] = answered(group)
    return found


def answered(group: Group) -> dict[str, Any]:
    answers = group.answers()
    assert not any(fault for fault, _ in answers), answers
    found: dict[str, Any] = answers[0][1]
    return found


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", NAMES)
def test_a_technique_is_right_or_refused(runs: dict[int, dict[str, Any]], name: str, stage: int) -> None:
    alone, found = runs[-1][name], runs[stage][name]
    technique = TRAINING_TABLE[name]
    use = Use.DDP if stage < 2 else Use.FSDP2
    must_refuse = use in technique.refuses or (stage == 1 and technique.stage is TrainingStage.OPTIMIZER)
    if isinstance(alone, str):  # it does not apply to this model or machine
        assert isinstance(found, str) and name in found
    elif name == "accumulation":  # each process weighs its parts by itself
        assert found == pytest.approx(alone, rel=2e-6)
    elif must_refuse:
        assert isinstance(found, str) and name in found, found
    else:
        assert found == pytest.approx(alone, rel=ROUGH.get(name, 2e-6)), found
