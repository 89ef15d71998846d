"""Each stage of ZeRO makes the steps of one process: losses, norms, gradients and weights."""

from functools import cache
from typing import Any

import pytest
from many import on_ranks
from stage_jobs import trained

from whet.parallel.ranks import Ranks


@cache
def _alone(dtype: str) -> dict[str, Any]:
    return trained(Ranks(), {}, dtype)


@pytest.mark.parametrize(("num_parts", "dtype"), [(1, "float64"), (2, "float64"), (2, "float32")])
@pytest.mark.parametrize(
    ("world_size", "plan"),
    [
        (2, {}),
        (2, {"zero_stage": 1}),
        (2, {"zero_stage": 2}),
        (3, {"zero_stage": 3}),
        (4, {"zero_stage": 2, "data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2}),
        (2, {"zero_stage": 3, "offload": "parameters"}),
        (2, {"gradient_as_bucket_view": False, "bucket_cap_mb": 0.001, "find_unused_parameters": True}),
    ],
)
def test_a_plan_makes_the_steps_of_one_process(
    world_size: int, plan: dict[str, Any], num_parts: int, dtype: str
) -> None:
    alone = _alone(dtype)
    exact = dtype == "float64"
    for found in on_ranks(trained, world_size, plan, dtype, 5, 4, num_parts):
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-12 if exact else 1e-6)
        assert found["norms"] == pytest.approx(alone["norms"], rel=1e-11 if exact else 1e-5)
        assert found["gradients"].keys() == alone["gradients"].keys()
        for name, values in alone["gradients"].items():
            near = pytest.approx(values, rel=1e-11, abs=1e-14) if exact else pytest.approx(values, rel=1e-4, abs=1e-6)
            assert found["gradients"][name] == near, name
        for name, values in alone["weights"].items():  # Adam divides by gradients, so that float32 would say nothing
            assert not exact or found["weights"][name] == pytest.approx(values, rel=1e-8, abs=1e-10), name


def test_a_static_graph_makes_the_steps_of_one_process_and_refuses_micro_batches() -> None:
    for found in on_ranks(trained, 2, {"static_graph": True}):
        assert found["losses"] == pytest.approx(_alone("float64")["losses"], rel=1e-12)
    with pytest.raises(AssertionError, match="static_graph needs gradients to be summed in each backward"):
        on_ranks(trained, 2, {"static_graph": True}, "float64", 5, 1, 2)
