"""A loop of one's own on several processes makes the steps of one, and what it cannot do is refused by name."""

from functools import cache
from typing import Any

import pytest
import torch
from loop_jobs import looped, made, refused
from many import Group
from stage_jobs import batches, count, loss_of

import whet
from whet.errors import OptionError, TargetError


@cache
def _alone() -> dict[str, Any]:
    return looped({})


def answered(function: Any, *args: Any) -> list[Any]:
    with Group(function, 2, *args) as group:
        answers = group.answers()
    assert not any(fault for fault, _ in answers), answers
    return [found for _, found in answers]


@pytest.mark.parametrize(("stage", "num_parts"), [(0, 2), (1, 1), (2, 2), (3, 1)])
def test_a_loop_makes_the_steps_of_one_process(stage: int, num_parts: int) -> None:
    for found in answered(looped, {"zero_stage": stage}, num_parts):
        assert found["losses"] == pytest.approx(_alone()["losses"], rel=1e-12)
        assert found["norms"] == pytest.approx(_alone()["norms"], rel=1e-11)
        for name, values in _alone()["weights"].items():
            assert found["weights"][name] == pytest.approx(values, rel=1e-8, abs=1e-10), name


@pytest.mark.parametrize(
    ("plan", "num_parts", "rows", "message"),
    [
        ({"pipeline_parallel_degree": 2}, 1, 5, "does not divide the layers of a loop's own model"),
        ({"static_graph": True}, 2, 5, "static_graph needs gradients to be summed in each backward"),
        ({}, 1, 1, "a batch of 1 rows is shared by 2 processes"),
    ],
)
def test_what_cannot_be_is_refused_by_name(plan: dict[str, Any], num_parts: int, rows: int, message: str) -> None:
    assert message in answered(refused, plan, num_parts, rows)[0]


def test_an_optimiser_of_other_parameters_or_with_steps_is_refused() -> None:
    model, optimizer = made()
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(OptionError, match="a parameter that the model does not have"), whet.parallelize(model, other):
        pass
    loss_of(model, batches(1, 5)[0]).backward()
    optimizer.step()
    with pytest.raises(OptionError, match="has made steps already"), whet.parallelize(model, optimizer):
        pass


def test_backward_goes_with_one_micro_batch_each() -> None:
    model, optimizer = made()
    [batch] = batches(1, 4)
    with whet.parallelize(model, optimizer) as parallel:
        step = parallel.micro_batches(batch, count, num_parts=2)
        with pytest.raises(TargetError, match="call it once within the loop"):
            step.backward(loss_of(model, batch))
        with pytest.raises(TargetError, match="was not called for a micro-batch"):
            for _ in step:
                pass
        for part in (step := parallel.micro_batches(batch, count)):
            step.backward(loss_of(model, part))
            with pytest.raises(TargetError, match="call it once within the loop"):
                step.backward(loss_of(model, part))
