"""How a plan scales: each number of GPUs has its own best plan, and where it breaks is where a GPU does half."""

from plain_predictor import a_cluster, a_shape, predict

from whet.planner.layout import Work
from whet.planner.scaling import BROKEN, chip_counts, scaling_of
from whet.planner.search import Search
from whet.planner.space import Space


def test_a_small_batch_breaks_and_one_that_grows_does_not() -> None:
    space = Space(a_shape(), a_cluster(64), Work(global_batch_size=64, sequence_length=4096))
    found = scaling_of(space, predict)
    assert [one.chips for one in found.fixed] == [2**power for power in range(3, 15)]
    there = [one for one in found.fixed if one.efficiency is not None]
    first = there[0]
    for one in there:
        assert one.tokens_per_s is not None and first.tokens_per_s is not None and one.step_s is not None
        each = one.tokens_per_s.value / one.chips
        assert one.efficiency == each / (first.tokens_per_s.value / first.chips)
        assert one.tokens_per_s.low < one.tokens_per_s.value < one.tokens_per_s.high
        assert abs(sum(one.shares.values()) - 1) < 1e-9
    assert found.breaks_at is not None
    at = next(one for one in found.fixed if one.chips == found.breaks_at)
    assert at.efficiency is None or at.efficiency < BROKEN
    assert all(one.efficiency is None or one.efficiency >= BROKEN for one in there if one.chips < found.breaks_at)
    assert found.why
    grown = [one for one in found.growing if one.efficiency is not None]
    assert {one.global_batch_size / one.chips for one in grown} == {1.0}
    assert grown[-1].chips == 16_384
    assert grown[-1].efficiency is not None and grown[-1].efficiency > BROKEN


def test_what_was_asked_for_is_among_the_points() -> None:
    space = Space(a_shape(), a_cluster(24), Work(global_batch_size=48, sequence_length=4096))
    found = scaling_of(space, predict)
    point = next(one for one in found.fixed if one.chips == 24)
    best = Search(space, predict).ranked()[0]
    assert point.step_s is not None
    assert point.step_s.value <= best.prediction.step_s.value * 1.02


def test_a_single_node_has_one_point() -> None:
    alone = a_cluster(8).model_copy(update={"between": None})
    assert chip_counts(alone) == [8]


def test_a_model_that_never_fits_has_no_points() -> None:
    space = Space(a_shape(), a_cluster(8, memory_gb=1), Work(global_batch_size=8, sequence_length=4096))
    found = scaling_of(space, predict)
    assert all(one.layout is None for one in found.fixed)
    assert (found.breaks_at, found.why) == (None, "no number of GPUs has a plan that fits")
