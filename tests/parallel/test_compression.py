"""Compressed gradients are near those of one process in float64; what breaks them is refused, and the rest is told."""

from functools import cache
from typing import Any

import pytest
import torch
from compression_jobs import compressed, each, refused, resumed
from many import on_ranks

from whet.errors import OptionError
from whet.parallel.machine_sums import machine_groups
from whet.parallel.ranks import Ranks


@cache
def _alone(steps: int = 1) -> dict[str, Any]:
    return compressed(Ranks(), {}, steps=steps)


def _relative_error(found: list[float], exact: list[float]) -> float:
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (found, exact))
    return float((x - y).norm() / y.norm())


@pytest.mark.parametrize(("world_size", "dtype"), [(2, "float64"), (3, "float32")])
def test_a_cast_changes_gradients_by_less_than_its_epsilon(world_size: int, dtype: str) -> None:
    epsilons = {"fp16": 2.0**-10, "bf16": 2.0**-7}
    calls = [(compressed, {"compression": name, "bucket_cap_mb": 0.01}, dtype) for name in epsilons]
    for of_calls in on_ranks(each, world_size, calls):
        for found, epsilon in zip(of_calls, epsilons.values(), strict=True):
            error = _relative_error(found["gradient"], _alone()["gradient"])
            assert epsilon / 100 < error < epsilon  # it did compress
            [sample] = found["samples"]
            assert (sample.step, sample.relative_error) == (1, pytest.approx(error, rel=1e-2))
            assert 1 - epsilon**2 < sample.cosine < 1


def test_sums_by_machine_are_those_of_one_process() -> None:
    plan = {"hierarchical_all_reduce": True, "bucket_cap_mb": 0.01}
    calls = [
        (compressed, plan, "float64", 3, 1.0, 2),
        (compressed, {**plan, "compression": "bf16"}, "float64", 1, 1.0, 2),
    ]
    for exact, cast in on_ranks(each, 4, calls):
        assert exact["losses"] == pytest.approx(_alone(3)["losses"], rel=1e-12)
        assert _relative_error(exact["gradient"], _alone(3)["gradient"]) < 1e-12
        assert 1e-4 < _relative_error(cast["gradient"], _alone()["gradient"]) < 2.0**-7


def test_groups_by_machine() -> None:
    assert machine_groups([[0, 1, 2, 3]], ["0", "0", "1", "1"]) == ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    # Every second process holds the other half of each matrix.
    peers = [[0, 2, 4, 6], [1, 3, 5, 7]]
    within, between = machine_groups(peers, ["a"] * 4 + ["b"] * 4)
    assert within == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert between == [[0, 4], [2, 6], [1, 5], [3, 7]]
    for machines, why in (
        (["0"] * 4, "see other rows are 4 by machine; leave it out"),
        (["0", "1", "2", "3"], "see other rows are 1 \\+ 1 \\+ 1 \\+ 1 by machine"),
        (["0", "0", "1", None], "start them with torchrun"),
    ):
        with pytest.raises(OptionError, match=why):
            machine_groups([[0, 1, 2, 3]], machines)
    with pytest.raises(OptionError, match="as many processes on each machine, and there are 3 \\+ 2"):
        machine_groups([[0, 1, 2, 3, 4]], ["0", "0", "0", "1", "1"])


def test_one_process_which_goes_on_with_what_several_began_compresses_nothing() -> None:
    for plan in ({"compression": "powersgd"}, {"compression": "fp16"}, {"hierarchical_all_reduce": True}):
        assert compressed(Ranks(), plan) == _alone()


def test_gradients_beyond_the_range_are_refused_where_compression_made_them_so() -> None:
    fp16, bf16 = ({"compression": name} for name in ("fp16", "bf16"))
    calls = [(refused, fp16, 1e8), (refused, bf16, 1e8), (refused, fp16, float("inf"))]
    for of_calls in on_ranks(each, 2, calls):
        [(message, is_unchanged), *others] = of_calls
        assert message.startswith("parallel.compression fp16 cannot hold the gradients of this step: they are beyond")
        assert "65504; set it to bf16" in message
        assert is_unchanged
        assert others == [("", False)] * 2  # what was not finite before is not compression's fault


def test_small_gradients_exceed_the_bound() -> None:
    calls = [(compressed, {"compression": name}, "float32", 1, 1e-6) for name in ("fp16", "bf16")]
    for lost, kept in on_ranks(each, 2, calls):
        assert lost["samples"][0].relative_error > 100 * lost["bound"]  # below fp16's range
        assert kept["samples"][0].relative_error < kept["bound"]


def test_low_rank_learns_as_exact_gradients_do_and_goes_on_bit_for_bit() -> None:
    plan = {"compression": "powersgd", "powersgd_rank": 2, "powersgd_start_step": 2, "bucket_cap_mb": 0.01}
    exact = _alone(30)["losses"]
    for found, (went_on, began_again) in on_ranks(each, 2, [(compressed, plan, "float64", 30), (resumed, plan)]):
        losses = found["losses"]
        assert losses[:3] == pytest.approx(exact[:3], rel=1e-12)  # of the steps before, which send all
        assert losses[3:] != pytest.approx(exact[3:], rel=1e-3)
        assert exact[0] - sum(losses[-3:]) / 3 > 0.9 * (exact[0] - sum(exact[-3:]) / 3)
        assert [sample.step for sample in found["samples"]] == [3, 12]
        assert all(0.01 < one.relative_error < found["bound"] and 0.3 < one.cosine < 1 for one in found["samples"])
        assert went_on == began_again
