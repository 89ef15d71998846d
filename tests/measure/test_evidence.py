"""Evidence of two variants, held against each other."""

import json
import math
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from whet.measure.evidence import LOSS_TOLERANCE, Agreement, Drift, Evidence, Losses, Outputs, Tokens, agreement_between


def losses(old: list[float | None], new: list[float | None]) -> Agreement:
    return agreement_between(Losses(by_step=tuple(old)), Losses(by_step=tuple(new)))


def test_losses_within_the_tolerance_are_the_same() -> None:
    found = losses([2.0, 1.0, 1.0], [2.0, 1.0 + LOSS_TOLERANCE / 2, 1.0])
    assert found.is_same
    assert found.distance is not None
    assert 0 < found.distance <= LOSS_TOLERANCE
    assert found.words.startswith("same loss over 3 steps")


def test_other_losses_are_told_from_where_on() -> None:
    found = losses([2.0, 1.0, 1.0], [2.0, 1.5, 1.4])
    assert not found.is_same
    assert found.distance == pytest.approx(0.9 / 4.0)  # means 4/3 and 4.9/3
    assert found.words.endswith("from step 2 on")


def test_lengths_may_differ_and_steps_without_a_loss_are_left_out() -> None:
    assert losses([2.0, None, 1.0, 5.0], [2.0, 3.0, 1.0]).distance == 0.0
    assert losses([None], [1.0]).distance is None
    assert not losses([None], [1.0]).is_same
    assert losses([math.nan], [1.0]).distance == math.inf


def test_outputs_agree_up_to_the_order_of_sums(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    old = Outputs.write([(x, x.argmax(-1))], tmp_path / "old")
    near = Outputs.write([(x + 1e-6 * torch.randn(4, 8), x.argmax(-1))], tmp_path / "near")
    far = Outputs.write([(x + 0.5 * torch.randn(4, 8), x.argmax(-1))], tmp_path / "far")
    assert agreement_between(old, near).is_same
    found = agreement_between(old, far)
    assert not found.is_same
    expected = 0.5 * ((torch.tensor(0.25) * 32) / ((x - x.mean()) ** 2).sum()).item()  # about, for this noise
    assert found.distance == pytest.approx(expected, rel=0.6)


def test_other_shapes_and_other_numbers_of_outputs_do_not_agree(tmp_path: Path) -> None:
    one = Outputs.write([(torch.ones(2),)], tmp_path / "one")
    two = Outputs.write([(torch.ones(2), torch.ones(2))], tmp_path / "two")
    wide = Outputs.write([(torch.ones(3),)], tmp_path / "wide")
    holes = Outputs.write([(torch.tensor([1.0, math.nan]),)], tmp_path / "holes")
    for other in (two, wide, holes):
        found = agreement_between(one, other)
        assert (found.is_same, found.distance) == (False, None)
        assert found.words.startswith("other outputs: ")


def test_tokens_count_up_to_the_first_difference() -> None:
    old = Tokens(answers=((1, 2, 3, 4), (5, 6)))
    assert agreement_between(old, old).is_same
    found = agreement_between(old, Tokens(answers=((1, 2, 9, 4), (5, 6))))
    assert not found.is_same
    assert found.distance == pytest.approx(1 - 4 / 6)
    assert found.words == "1 of 2 answers are equal; 4 of 6 tokens come before a difference"
    longer = agreement_between(old, Tokens(answers=((1, 2, 3, 4, 5), (5, 6))))
    assert (longer.is_same, longer.distance) == (False, pytest.approx(1 - 6 / 7))
    assert not agreement_between(old, Tokens(answers=((1, 2, 3, 4),))).is_same


def test_drift_is_the_worst_frame(tmp_path: Path) -> None:
    frames = [torch.randn(3, 8, 8) for _ in range(4)]
    drifted = [frame + 0.1 * i * torch.randn(3, 8, 8) for i, frame in enumerate(frames)]
    files = [
        Outputs.write([(frame,) for frame in some], tmp_path / str(i)).file for i, some in enumerate((frames, drifted))
    ]
    old, new = (Drift(file=file) for file in files)
    assert agreement_between(old, old).is_same
    found = agreement_between(old, new)
    assert not found.is_same
    assert found.distance == pytest.approx(0.5 * 0.3**2, rel=0.5)


def test_kinds_do_not_mix_and_come_back_from_json() -> None:
    assert not agreement_between(Losses(by_step=(1.0,)), Tokens(answers=())).is_same
    adapter: TypeAdapter[Evidence] = TypeAdapter(Evidence)
    lost = json.loads(json.dumps(Losses(by_step=(1.0, math.nan)).model_dump(mode="json")))
    assert not agreement_between(Losses(by_step=(1.0, 1.0)), adapter.validate_python(lost)).is_same
    for evidence in (Losses(by_step=(1.0, None)), Tokens(answers=((1,),)), Outputs(file="x"), Drift(file="y")):
        assert adapter.validate_json(adapter.dump_json(evidence)) == evidence
