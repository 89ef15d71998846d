"""The bytes that are counted are those of the formulas: of each stage of ZeRO, of compression, of each collective."""

import math

import pytest
from many import on_ranks
from stage_jobs import Net
from wire_jobs import sent, sent_in_calls

SHAPES = [tuple(p.shape) for p in Net(width=32).parameters()]
BYTES = 4 * sum(map(math.prod, SHAPES))
LOSS = 2 * 8  # RankTrainer adds up the targets and the loss, a float64 each


def _padded(n: int) -> int:
    """Return the bytes of parameters whose first dimension is filled up to a multiple of n."""
    return 4 * sum(-(-first // n) * n * math.prod(others) for first, *others in SHAPES)


@pytest.mark.parametrize("n", [2, 3])
def test_each_stage_sends_what_its_formula_says(n: int) -> None:
    plans = [{"zero_stage": stage, "bucket_cap_mb": 0.01} for stage in range(4)]
    once = (n - 1) / n
    loss = 2 * once * LOSS
    expected = [
        {"all_reduce": loss + 2 * once * BYTES},
        {"all_reduce": loss + 2 * once * BYTES, "broadcast": once * BYTES},
        {"all_reduce": loss, "all_gather": once * _padded(n), "reduce_scatter": once * _padded(n)},
        {"all_reduce": loss, "all_gather": 2 * once * _padded(n), "reduce_scatter": once * _padded(n)},
    ]
    for of_plans in on_ranks(sent, n, plans):
        for (num_bytes, calls), formula in zip(of_plans, expected, strict=True):
            assert num_bytes == pytest.approx(formula, abs=sum(calls.values()))  # each is rounded down
        # The root and three blocks, each once in forward and once more in backward where it is not kept.
        assert [calls.get("all_gather", 0) for _, calls in of_plans] == [0, 0, 4, 8]


def test_compression_sends_fewer_bytes() -> None:
    low = sum(2 * sum(shape) if len(shape) == 2 else shape[0] for shape in SHAPES)
    plans = [{"compression": "bf16"}, {"compression": "powersgd", "powersgd_rank": 2, "powersgd_start_step": 2}]
    for of_plans in on_ranks(sent, 2, plans, 5):
        assert [num_bytes for num_bytes, _ in of_plans] == [
            {"all_reduce": BYTES // 2 + LOSS},
            {"all_reduce": 4 * low + LOSS},
        ]
    assert 4 * low < BYTES / 3


def test_sums_by_machine_send_half_as_much_between_two_machines_of_two() -> None:
    for [(num_bytes, _)] in on_ranks(sent, 4, [{"hierarchical_all_reduce": True}], 3, 2):
        assert num_bytes["reduce_scatter"] == num_bytes["all_gather"] == pytest.approx(BYTES / 2, abs=4)
        assert num_bytes["all_reduce"] == pytest.approx(BYTES / 2 + 2 * 3 / 4 * LOSS, abs=4)


def test_each_call_counts() -> None:
    for exchanged, to_next, redistributed in on_ranks(sent_in_calls, 3):
        assert exchanged == {"all_to_all": 48 * 2 // 3}
        assert to_next == {"send": 48}
        assert redistributed == {"all_gather": 3 * 48 * 2 // 3}
