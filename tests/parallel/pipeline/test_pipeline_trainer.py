"""Each schedule of a pipeline makes the steps of one process: losses, norms, gradients and weights, by their names."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from many import on_ranks
from pipeline_jobs import Case, all_trained, sent, trained

from whet.parallel.ranks import Ranks

Work = list[tuple[dict[str, Any], Case]]
TWO, FOUR = {"pipeline_parallel_degree": 2}, {"pipeline_parallel_degree": 4}
GRID = {**TWO, "tensor_parallel_degree": 2}
COPIED = {**GRID, "sequence_parallel": False}
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


# 9 or 1 tokens of a row and 23 of the vocabulary are divided into unequal parts, or leave a process without any.
ON_GRID: Work = [
    ({**GRID, "pipeline_micro_batches": 3}, replace(PACKED, family="qwen3", rows=7, num_parts=2)),
    (
        {**COPIED, "pipeline_schedule": "zero_bubble", "pipeline_micro_batches": 2},
        replace(PACKED, family="llama", layers=4),
    ),
]
MORE_ON_GRID: Work = [
    ({**GRID, "pipeline_schedule": "gpipe", "pipeline_micro_batches": 3}, Case()),
    ({**GRID, "checkpointing": "blocks"}, replace(PACKED, rows=9, num_parts=2)),
    ({**GRID, "pipeline_micro_batches": 2}, Case(family="llama", tied=True, length=1)),
    ({**GRID, "pipeline_micro_batches": 2}, Case(family="mistral", packed=True, length=6)),
    ({**COPIED, "pipeline_micro_batches": 2}, Case(family="mistral", tied=True)),
    ({**GRID, "pipeline_schedule": "interleaved_1f1b", "pipeline_micro_batches": 4}, PACKED),
    ({**COPIED, "pipeline_schedule": "interleaved_1f1b", "pipeline_micro_batches": 4}, Case(family="qwen3")),
    ({**GRID, "pipeline_schedule": "zero_bubble", "pipeline_micro_batches": 4}, PACKED),
    ({**GRID, "pipeline_schedule": "zero_bubble", "checkpointing": "blocks"}, Case(layers=4)),
    ({**COPIED, "zero_stage": 3, "pipeline_micro_batches": 3}, replace(PACKED, layers=3)),
    ({**GRID, "pipeline_micro_batches": 4}, replace(PACKED, dtype="float32")),
]
ON_CUBE: Work = [
    ({**GRID, "pipeline_micro_batches": 2}, replace(PACKED, rows=7)),
    ({**GRID, "pipeline_micro_batches": 2, "zero_stage": 2}, replace(PACKED, rows=10, num_parts=2)),
    ({**COPIED, "pipeline_micro_batches": 2, "zero_stage": 3, "pipeline_schedule": "gpipe"}, replace(PACKED, rows=7)),
    ({**GRID, "pipeline_micro_batches": 4, "zero_stage": 3, "pipeline_schedule": "interleaved_1f1b"}, PACKED),
    (
        {**GRID, "pipeline_micro_batches": 2, "zero_stage": 3, "checkpointing": "blocks"},
        replace(PACKED, family="qwen3"),
    ),
    ({**GRID, "pipeline_micro_batches": 2, "zero_stage": 2, "offload": "parameters"}, replace(PACKED, family="llama")),
    ({**GRID, "pipeline_micro_batches": 4, "pipeline_schedule": "interleaved_1f1b"}, PACKED),
    ({**GRID, "pipeline_micro_batches": 2, "pipeline_schedule": "zero_bubble"}, replace(PACKED, rows=7)),
    ({**FOUR, "tensor_parallel_degree": 2, "pipeline_micro_batches": 4}, PACKED),
    ({**TWO, "tensor_parallel_degree": 4, "pipeline_micro_batches": 4}, replace(PACKED, kv_heads=4)),
]
TABLES: dict[str, tuple[int, Work, Any]] = {
    "two": (2, ON_2, ()),
    "four": (4, ON_4, pytest.mark.slow),
    "grid": (4, ON_GRID, ()),
    "more of the grid": (4, MORE_ON_GRID, pytest.mark.slow),
    "cube": (8, ON_CUBE, pytest.mark.slow),
}
AT_ONCE = 3  # trainings of one start of the processes, which must answer in time


@cache
def _alone(case: Case) -> dict[str, Any]:
    return trained(Ranks(), {}, case)


@cache
def _together(table: str, begin: int) -> list[list[dict[str, Any]]]:
    world_size, work, _ = TABLES[table]
    return on_ranks(all_trained, world_size, work[begin : begin + AT_ONCE])


@pytest.mark.parametrize(
    ("table", "number"),
    [
        pytest.param(table, number, marks=marks)
        for table, (_, work, marks) in TABLES.items()
        for number in range(len(work))
    ],
)
def test_processes_make_the_steps_of_one(table: str, number: int) -> None:
    case = TABLES[table][1][number][1]
    found = _together(table, number - number % AT_ONCE)
    _check([one[number % AT_ONCE] for one in found], case, _alone(case))


@pytest.mark.thorough
def test_processes_that_share_matrices_drop_what_one_drops() -> None:
    """Each stage draws what it draws where its process has whole matrices."""
    case = replace(PACKED, dropout=0.25)
    plans = [{"pipeline_micro_batches": 2}, {"pipeline_micro_batches": 2, "checkpointing": "blocks"}]
    expected = on_ranks(all_trained, 2, [({**TWO, **plan}, case) for plan in plans])
    found = on_ranks(
        all_trained, 4, [({**given, **plan}, case) for given, plan in zip((GRID, COPIED), plans, strict=True)]
    )
    for number in range(len(plans)):
        first, last = (one[number] for one in expected)
        whole = {**last, **{kind: {**first[kind], **last[kind]} for kind in ("gradients", "weights")}}
        _check([one[number] for one in found], case, whole)
        assert whole["losses"] != pytest.approx(_alone(replace(case, dropout=0.0))["losses"], rel=1e-3)


@pytest.mark.thorough
def test_a_stage_sends_the_tokens_that_it_holds() -> None:
    """Of 9 tokens, the first process of two holds 5. A stream is 16 wide, in float64, and so are its gradients."""
    row = 16 * 8
    for plan, tokens in ((GRID, (5, 4)), (COPIED, (9, 9))):
        found = on_ranks(sent, 4, {**plan, "pipeline_micro_batches": 2}, Case(rows=8))
        assert found == [8 * held * row for held in (*tokens, *tokens)]


def _check(found: list[dict[str, Any]], case: Case, alone: dict[str, Any]) -> None:
    exact = case.dtype == "float64"
    held = [set(one["gradients"]) for one in found]
    assert set().union(*held) == alone["gradients"].keys()
    assert all(own < alone["gradients"].keys() for own in held), "no process holds everything"
    for one in found:
        assert one["losses"] == pytest.approx(alone["losses"], rel=1e-12 if exact else 1e-6)
        assert one["norms"] == pytest.approx(alone["norms"], rel=1e-11 if exact else 1e-5)
        assert one["logits"] == pytest.approx(alone["logits"], rel=1e-9, abs=1e-10 if exact else 1e-4)
        for name, values in one["gradients"].items():
            largest = max(*map(abs, alone["gradients"][name]), 1e-3)  # of one token, those of queries are 0
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
