"""What is known of a script before its trials: which techniques are worth one, and what they may gain."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from script_outcomes import AUTOCAST, FUSED, SHARES, outcome

from whet.core.recipe import Step
from whet.scripts.injection.command import ScriptCommand
from whet.scripts.injection.messages import ScriptRecord
from whet.techniques.costs.memory import StepMemory
from whet.tuner.goal import Goal
from whet.tuner.scripts.examination import Examined
from whet.tuner.scripts.facts import applicable_techniques, facts_of
from whet.tuner.scripts.proof import Original
from whet.tuner.scripts.runs import timed_run
from whet.tuner.training.space import worth_trying


def bounds(shares: dict[str, float], *steps: Step, exclude: Sequence[str] = ()) -> dict[str, float]:
    record = ScriptRecord(seconds=[], losses=[], applicable=list(steps), shares=shares)
    return {entry.technique: entry.most for entry in applicable_techniques(record, exclude)}


@pytest.mark.parametrize(("share", "is_tried"), [(1.0, False), (0.4, True), (None, True)])
def test_attention_by_documents_is_tried_where_masks_keep_documents_apart(
    tmp_path: Path, share: float | None, is_tried: bool
) -> None:
    command, own = ScriptCommand(("python", "train.py"), 1, tmp_path), outcome(tmp_path / "a")
    steps = [FUSED, Step(technique="document_attention")]
    watched = ScriptRecord(seconds=[], losses=[], applicable=steps, within_documents=share)
    for exclude in ((), ("document_attention",)):
        facts = facts_of(command, Examined(watched, timed_run(own), Original(own, own)), exclude, 1.0)
        assert ("document_attention" in {entry.technique for entry in facts.applicable}) == (is_tried and not exclude)
        reasons = [refused.reason for refused in facts.refused]
        assert len(reasons) == (0 if is_tried and not exclude else 1)
        assert is_tried or reasons[0].startswith("no attention of a step has a mask")


def test_what_a_technique_may_gain_is_told_by_the_phases_that_it_changes() -> None:
    compiled, loader = Step(technique="compile"), Step(technique="loader", options={"num_workers": 1})
    found = bounds(SHARES, FUSED, AUTOCAST, compiled, exclude=["compile"])
    assert found == {"fused_optimizer": pytest.approx(1 / 0.9), "autocast": pytest.approx(1 / 0.6)}
    waits = {"forward": 0.4, "backward": 0.3, "data wait": 0.3}
    assert bounds(waits, loader)["loader"] == pytest.approx(1 / 0.7)
    record = ScriptRecord(seconds=[], losses=[], applicable=[FUSED, AUTOCAST], shares={"forward": 1.0})
    entries = applicable_techniques(record, [])
    assert worth_trying(entries, Goal("throughput"), 0).techniques.keys() == {"autocast"}, "the optimiser takes nothing"


def test_what_saves_memory_is_known_by_what_the_step_holds() -> None:
    memory = StepMemory(peak_bytes=1000, parameter_bytes=100, gradient_bytes=100, optimizer_bytes=600, other_bytes=200)
    record = ScriptRecord(seconds=[], losses=[], applicable=[FUSED, AUTOCAST], shares=SHARES)
    found = {entry.technique: entry.saves_memory for entry in applicable_techniques(record, [], memory)}
    assert found == {"fused_optimizer": False, "autocast": True}
