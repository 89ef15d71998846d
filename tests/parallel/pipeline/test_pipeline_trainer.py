"""Each schedule of a pipeline makes the steps of one process: losses, norms, gradients and weights, by their names."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from many import on_ranks
from pipeline_jobs import Case, all_trained, trained

from whet.parallel.ranks import Ranks

Work = list[tuple[dict[str, Any], Case]]
TWO, FOUR = {"pipeline_parallel_degree": 2}, {"pipeline_parallel_degree": 4}
PACKED = Case(tied=True, packed=True)
ON_2: Work = [
    ({**TWO, "pipeline_schedule": "gpipe", "pipeline_micro_batches": 3}, Case()),
    ({**TWO, "pipeline_schedule": "gpipe", "pipeline_micro_batches": 4}, PACKED),
    ({**TWO, "pipeline_schedule": "1f1b", "pipeline_micro_batches": 2}, replace(PACKED, rows=7)),
    ({**TWO, "pipeline_schedule": "1f1b", "pipeline_micro_batches": 4}, replace(PACKED, rows=9, num_parts=2)),
    ({**TWO, "pipeline_schedule": "1f1b", "checkpointing": "blocks"}, PACKED),
    ({**TWO, "pipeline_schedule": "interleaved_1f1b", "pipeline_micro_batches": 4}, PACKED),
    ({**TWO, "pipeline_schedule": "zero_bubble", "pipeline_micro_batches": 4}, PACKED),
    ({**TWO, "pipeline_schedule": "zero_bubble", "checkpointing": "blocks"}, Case(layers=4)),
    ({**TWO, "pipeline_micro_batches": 4}, replace(PACKED, dtype="float32")),
]
ON_4: Work = [
    ({**FOUR, "pipeline_schedule": "gpipe", "pipeline_micro_batches": 4}, PACKED),
    ({**FOUR, "pipeline_schedule": "1f1b", "pipeline_micro_batches": 5}, PACKED),
    ({**FOUR, "pipeline_schedule": "interleaved_1f1b", "pipeline_micro_batches": 4}, replace(PACKED, layers=9)),
    ({**FOUR, "pipeline_schedule": "zero_bubble", "pipeline_micro_batches": 8}, replace(PACKED, layers=9)),
    ({**TWO, "pipeline_micro_batches": 2}, replace(PACKED, rows=7)),
    ({**TWO, "pipeline_micro_batches": 2, "zero_stage": 2}, replace(PACKED, rows=10, num_parts=2)),
    ({**TWO, "pipeline_micro_batches": 2, "zero_stage": 3, "pipeline_schedule": "gpipe"}, replace(PACKED, rows=7)),
    ({**TWO, "pipeline_micro_batches": 4, "zero_stage": 3, "pipeline_schedule": "interleaved_1f1b"}, PACKED),
    ({**TWO, "pipeline_micro_batches": 2, "zero_stage": 3, "offload": "parameters"}, PACKED),
    ({**TWO, "pipeline_micro_batches": 4, "pipeline_schedule": "interleaved_1f1b"}, PACKED),
    ({**TWO, "pipeline_micro_batches": 2, "pipeline_schedule": "zero_bubble"}, replace(PACKED, rows=7)),
]


@cache
def _alone(case: Case) -> dict[str, Any]:
    return trained(Ranks(), {}, case)


@cache
def _together(world_size: int) -> list[list[dict[str, Any]]]:
    return on_ranks(all_trained, world_size, ON_2 if world_size == 2 else ON_4)


@pytest.mark.parametrize("number", range(len(ON_2)))
def test_two_processes_make_the_steps_of_one(number: int) -> None:
    _check([found[number] for found in _together(2)], ON_2[number][1])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ON_4)))
def test_four_processes_make_the_steps_of_one(number: int) -> None:
    _check([found[number] for found in _together(4)], ON_4[number][1])


def _check(found: list[dict[str, Any]], case: Case) -> None:
    alone = _alone(case)
    exact = case.dtype == "float64"
    held = [set(one["gradients"]) for one in found]
    assert set().union(*held) == alone["gradients"].keys()
    assert all(own < alone["gradients"].keys() for own in held), "no process holds everything"
    for one in found:
        assert one["losses"] == pytest.approx(alone["losses"], rel=1e-12 if exact else 1e-6)
        assert one["norms"] == pytest.approx(alone["norms"], rel=1e-11 if exact else 1e-5)
        assert one["logits"] == pytest.approx(alone["logits"], rel=1e-9, abs=1e-10 if exact else 1e-4)
        for name, values in one["gradients"].items():
            largest = max(map(abs, alone["gradients"][name]))
            near = pytest.approx(alone["gradients"][name], rel=0, abs=largest * (1e-12 if exact else 1e-5))
            assert values == near, name
        for name, values in one["weights"].items():  # Adam divides by gradients, so that float32 would say nothing
            assert not exact or values == pytest.approx(alone["weights"][name], rel=1e-8, abs=1e-10), name
    sums = [one["held_out"] for one in found if one["held_out"] is not None]
    assert sums
    assert all(one == pytest.approx(alone["held_out"], rel=1e-12 if exact else 1e-6) for one in sums)
    tied = {one["weights"]["embed_tokens.weight"] for one in _as_tuples(found)}
    assert len(tied) == 1, "both ends hold the same bits"


def _as_tuples(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what of the results of processes can be put into a set: the embedding where they hold it."""
    name = "embed_tokens.weight"
    return [{"weights": {name: tuple(one["weights"][name])}} for one in found if name in one["weights"]]
