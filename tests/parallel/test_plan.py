"""Which plans there are, how many processes they are for, and that the documentation names each key."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from whet.errors import OptionError
from whet.parallel.plan import ParallelPlan, degrees_of

PAGE = Path(__file__).parents[2] / "docs" / "parallel.md"
degree = st.integers(1, 4)


@given(
    world_size=st.integers(1, 64),
    replicate=st.none() | degree,
    shard=st.none() | degree,
    tensor=degree,
    pipeline=degree,
    stage=st.sampled_from([0, 2, 3]),
)
def test_degrees_multiply_to_the_world_size_or_are_refused(
    world_size: int, replicate: int | None, shard: int | None, tensor: int, pipeline: int, stage: Any
) -> None:
    plan = ParallelPlan(
        data_parallel_replicate_degree=replicate,
        data_parallel_shard_degree=shard if stage else None,
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=pipeline,
        zero_stage=stage,
    )
    given_sizes = (replicate or 1) * ((shard or 1) if stage else 1) * tensor * pipeline
    fits = world_size % given_sizes == 0
    is_free = replicate is None or (stage and shard is None)
    try:
        found = degrees_of(plan, world_size)
    except OptionError as error:
        assert not (fits and (is_free or world_size == given_sizes)), error
        assert f"the {world_size} processes" in str(error)
        return
    assert fits
    assert math.prod(found.sizes.values()) == world_size
    assert (found.tensor, found.pipeline) == (tensor, pipeline)
    assert replicate in (None, found.replicate)
    assert not stage or shard in (None, found.shard)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"data_parallel_shard_degree": 2, "zero_stage": 1}, "zero_stage 1 shares neither"),
        ({"offload": "parameters"}, "offload changes nothing without zero_stage 2 or 3"),
        ({"compression": "bf16", "zero_stage": 2}, "compression changes nothing without zero_stage 0"),
        ({"param_dtype": "bfloat16"}, "param_dtype changes nothing without"),
        ({"async_tensor_parallel": True}, "without a tensor_parallel_degree above 1"),
        ({"compression": "fp16", "tensor_parallel_degree": 2}, "compression is for whole models"),
        ({"zero_stage": 1, "pipeline_parallel_degree": 2}, "zero_stage 1 divides the optimiser of whole models"),
        (
            {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "async_tensor_parallel": True},
            "async_tensor_parallel does not go with a pipeline_parallel_degree above 1",
        ),
        ({"zero_stages": 2}, "Extra inputs"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ParallelPlan(**keys)


def test_a_shard_degree_means_zero_3() -> None:
    assert ParallelPlan(data_parallel_shard_degree=2).stage == 3
    assert ParallelPlan().stage == 0


@pytest.mark.parametrize("key", ParallelPlan.model_fields)
def test_the_documentation_names_each_key(key: str) -> None:
    assert f"`{key}`" in PAGE.read_text(encoding="utf-8")
