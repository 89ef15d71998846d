"""Bounded runs on several ranks: the record of all is that of one process, and a proof judges each."""

from pathlib import Path

import pytest
import script_process
from launched_scripts import CHECKPOINTING, DDP, DDP_LOADER, FSDP2, FUSED, bounded, reference_losses

from whet.core.recipe import Step
from whet.scripts.injection.messages import GRADIENTS
from whet.techniques.proof import gradients
from whet.techniques.training_technique import Exactness
from whet.tuner.scripts.proof import Original, judge

OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
COMPUTES = (
    "from whet.measure.machine import Machine\nMachine.computes_bfloat16 = lambda *_: True\n"  # wherever this runs
)
LATE = COMPUTES + DDP.replace(OPTIMIZER, "").replace(
    "from torch import dist", f"{OPTIMIZER}model(x)\nfrom torch import dist"
)


@pytest.fixture(autouse=True)
def as_forks(children_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    script_process.use(monkeypatch)


@pytest.mark.parametrize("steps", [(), (FUSED,), (CHECKPOINTING, FUSED)])
def test_ranks_train_as_one_process_does(place: Path, steps: tuple[Step, ...]) -> None:
    found = bounded(place, DDP, steps=steps, is_watched=not steps)
    assert found.record is not None, found.failure
    assert found.record.losses == pytest.approx(reference_losses(8), rel=1e-5)
    assert (found.record.world_size, len(found.record.seconds)) == (2, 7)
    assert (found.record.model, found.record.optimizer) == ("Sequential", "AdamW")
    if not steps:
        assert {"fused_optimizer", "checkpointing"} <= {step.technique for step in found.record.applicable}
        assert found.record.refused["bf16_parameters"].startswith("it does not bear DDP")


def test_a_proof_judges_each_rank(place: Path) -> None:
    own, fused = (bounded(place, DDP, is_proof=True, steps=steps) for steps in ((), (FUSED,)))
    original = Original(own, own)
    assert judge(original, fused, Exactness.EXACT)[0] == ""
    assert fused.record is not None and fused.record.updates is not None and fused.record.updates.is_same
    found = gradients.read(fused.directory / GRADIENTS)
    key = next(key for key in found if key.startswith("0.rank 1: "))
    gradients.write({**found, key: 2 * found[key]}, fused.directory / GRADIENTS)
    assert "rank 1: " in judge(original, fused, Exactness.EXACT)[0]
    doubled = bounded(place, DDP.replace("rank, size =", "rank, size = 0, 2 #"), is_proof=True)
    assert judge(original, doubled, Exactness.EXACT)[0] != "", "both ranks train on the same half of the batch"


@pytest.mark.parametrize(
    ("source", "asked", "said"),
    [
        (DDP, {"steps": ({"technique": "bf16_parameters"},)}, "bf16_parameters cannot be applied here: it does not"),
        (
            LATE,
            {"steps": ({"technique": "bf16_parameters"},)},
            "bf16_parameters: it does not bear DDP",
        ),
        (FSDP2, {}, "fully_shard divides the parameters among processes, and whet tune does not compare"),
        (DDP.replace("    loss.backward()", "    1 / rank; loss.backward()"), {}, "code 1: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_tuned_is_said_once(place: Path, source: str, asked: dict[str, object], said: str) -> None:
    found = bounded(place, source, **asked)
    assert found.record is None and said in found.failure, found.failure


def test_ranks_that_end_early_have_the_steps_that_they_made(place: Path) -> None:
    found = bounded(place, DDP, "3")
    assert found.record is not None and found.record.losses == pytest.approx(reference_losses(3), rel=1e-5)


@pytest.mark.parametrize("step", [Step(technique="loader", options={"num_workers": 1}), Step(technique="prefetch")])
def test_each_rank_s_loader_is_read_ahead(place: Path, step: Step) -> None:
    own, ahead = (bounded(place, DDP_LOADER, steps=steps) for steps in ((), (step,)))
    assert own.record is not None and ahead.record is not None, ahead.failure
    assert ahead.record.losses == own.record.losses == pytest.approx(reference_losses(8), rel=1e-5)
