"""Micro-batches that a schedule cannot take are refused before it would wait for ever."""

from typing import Any

import pytest
from pydantic import ValidationError

from whet.errors import OptionError
from whet.parallel.pipeline.schedules import check_micro_batches
from whet.parallel.plan import ParallelPlan


@pytest.mark.parametrize(
    ("keys", "rows", "told"),
    [
        ({"pipeline_micro_batches": 3}, 8, "4 processes need at least one each"),
        ({"pipeline_micro_batches": 6}, 5, "5 rows of a process .* set it to 5 or less"),
        ({}, 7, "parallel.pipeline_micro_batches is 8; set it to 7 or less"),
        ({"pipeline_micro_batches": 9, "pipeline_schedule": "zero_bubble"}, 99, "takes multiples of 4; set it to 8"),
    ],
)
def test_unfit_micro_batches_are_refused(keys: dict[str, Any], rows: int, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        check_micro_batches(ParallelPlan(pipeline_parallel_degree=4, **keys), rows)


def test_there_are_twice_as_many_micro_batches_as_stages() -> None:
    assert check_micro_batches(ParallelPlan(pipeline_parallel_degree=4), 8) == 8
    plan = ParallelPlan(pipeline_parallel_degree=4, pipeline_schedule="interleaved_1f1b")
    assert check_micro_batches(plan, 16) == 16


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"pipeline_parallel_degree": 1, "pipeline_schedule": "gpipe"}, "pipeline_schedule changes nothing"),
        ({"pipeline_parallel_degree": 1, "checkpointing": "blocks"}, "checkpointing changes nothing"),
        ({"stages_per_rank": 2}, "1f1b has one stage a process"),
        ({"pipeline_schedule": "zero_bubble", "zero_stage": 3}, "shards of zero_stage 3 are not there"),
        ({"compression": "bf16"}, "compression does not go with"),
        ({"static_graph": True}, "static_graph does not go with"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ParallelPlan(**{"pipeline_parallel_degree": 2, **keys})
