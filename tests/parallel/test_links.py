"""Collectives are those that they are called, and their rates are what a process sends at the least."""

from typing import Any

import pytest
from link_jobs import moved, timed
from many import on_ranks

SENT = {
    2: {"send": 1, "all-reduce": 1, "all-gather": 1 / 2, "reduce-scatter": 1 / 2, "broadcast": 1},
    3: {"send": 1, "all-reduce": 4 / 3, "all-gather": 2 / 3, "reduce-scatter": 2 / 3, "broadcast": 1},
}


@pytest.mark.parametrize("world_size", [2, 3])
def test_operations_are_timed_alike_on_all_processes(world_size: int) -> None:
    first, *others = on_ranks(timed, world_size, 1000)
    assert others == [first] * (world_size - 1)
    found: dict[str, dict[str, Any]] = {one["operation"]: one for one in first}
    assert list(found) == list(SENT[world_size])
    for name, share in SENT[world_size].items():
        one = found[name]
        assert one["backend"] == "gloo" and 0 < one["seconds"] < 10
        is_rounded = world_size == 3 and name in ("all-gather", "reduce-scatter")
        assert one["num_bytes"] == (1008 if is_rounded else 1000)
        assert one["bytes_per_s"] == pytest.approx(share * one["num_bytes"] / one["seconds"])


def test_what_is_timed_moves_what_it_says() -> None:
    for rank, found in enumerate(on_ranks(moved, 3)):
        assert found["all-reduce"] == [6.0] * 6  # 1 + 2 + 3
        assert found["all-gather"] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        assert found["broadcast"] == [1.0] * 6
        assert found["send"] == [1.0 if rank < 2 else 3.0] * 6  # the third has no other
