"""Closeness by column: the worst column counts, with its own spread, and constant columns raise no alarm."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

from whet.measure.closeness import Closeness, Sums, distance_between
from whet.measure.columns import SLACK, _least_spread

LIMIT = 0.01
NAMES = st.integers(0, 10**6)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def closeness(*pairs: tuple[Tensor, Tensor], is_batched: bool = True) -> Closeness:
    sums = Sums(is_batched=is_batched)
    for original, variant in pairs:
        sums.add(original, variant)
    return sums.closeness()


def detections(seed: int = 0, places: int = 400) -> Tensor:
    """Four coordinates of 0 to 320 beside six scores of 0 to 1, [1, 10, places]."""
    random = seeded(seed)
    boxes, scores = (torch.rand(1, n, places, generator=random) for n in (4, 6))
    return torch.cat([320 * boxes, scores**8], 1)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1)])
def test_scores_that_are_lost_beside_boxes_are_named(axes: tuple[int, ...]) -> None:
    original = detections().permute(axes)
    variant = detections()
    variant[:, 4:] = 0
    found = closeness((original, variant.permute(axes)))
    assert found.cosine > 0.99999
    assert found.distance is not None and found.distance > LIMIT
    assert found.column is not None
    assert (found.column.axis, found.column.size) == (axes.index(1), 10)
    assert found.column.index >= 4
    assert f"column {found.column.index} of 10 along axis {axes.index(1)}: error " in found.column.words
    assert distance_between(original, variant.permute(axes)) == found.distance


def test_a_small_error_in_every_column_is_allowed() -> None:
    original = detections()
    spread = original.std(2, keepdim=True)
    found = closeness((original, original + 0.05 * spread * normal(*original.shape)))
    assert found.column is None, "the whole output is further from the original than a tenth of any column's distance"
    assert found.distance is not None and found.distance < 0.5 * 0.05**2


def test_an_output_without_a_batch_has_columns_along_its_first_axis() -> None:
    original, variant = detections()[0], detections()[0]
    variant[4:] = 0
    found = closeness((original, variant), is_batched=False)
    assert found.column is not None and found.column.axis == 0
    assert found.distance is not None and found.distance > LIMIT


def test_a_dimension_beside_outliers_counts_with_its_own_spread() -> None:
    original = normal(64, 32)
    original[:, 3] *= 1000
    variant = original.clone()
    variant[:, 7] = normal(64, seed=1)
    found = closeness((original[:32], variant[:32]), (original[32:], variant[32:]))
    assert found.column is not None and (found.column.axis, found.column.index) == (1, 7)
    assert found.distance is not None and found.distance > LIMIT


@given(NAMES, st.floats(-3, 3), st.integers(0, 7))
def test_the_scale_of_a_column_changes_nothing(seed: int, power: float, column: int) -> None:
    """Alone it is what its own spread says, at any scale that float32 leaves beside the others."""
    original, error = normal(64, 8, seed=seed), torch.zeros(64, 8)
    error[:, column] = normal(64, seed=seed + 1)
    scale = torch.ones(8).index_fill(0, torch.tensor(column), 10**power)
    found, scaled = (closeness((original * s, (original + error) * s)) for s in (torch.ones(8), scale))
    for each in (found, scaled):
        assert each.distance is not None and each.distance > LIMIT
    if scaled.column is not None and found.column is not None and power < 0:
        assert scaled.column.index == found.column.index == column
        assert scaled.column.distance == pytest.approx(found.column.distance, rel=1e-2)


@given(NAMES, st.permutations([1, 2, 3]))
def test_the_order_of_the_axes_changes_nothing(seed: int, axes: list[int]) -> None:
    original = normal(2, 3, 4, 5, seed=seed) * 10 ** normal(4, 1, seed=seed + 1)
    variant = original + 0.3 * normal(2, 3, 4, 5, seed=seed + 2)
    there, back = closeness((original, variant)), closeness((original.permute(0, *axes), variant.permute(0, *axes)))
    assert back.distance == pytest.approx(there.distance, rel=1e-9)
    if there.column is not None and back.column is not None:
        assert back.column.index == there.column.index
        assert (0, *axes)[back.column.axis] == there.column.axis


@given(NAMES, st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_equal_outputs_are_equal(seed: int, shape: list[int]) -> None:
    original = normal(*shape, seed=seed)
    found = closeness((original, original.clone()))
    assert (found.distance, found.column) == (0.0, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@given(NAMES, st.floats(-6, 6))
def test_constant_columns_raise_no_alarm(dtype: torch.dtype, seed: int, power: float) -> None:
    """Rounding to 8 or 11 bits moves a constant by more than any spread that float32 rounding gives it."""
    original = normal(64, 8, seed=seed)
    size = 10**power / 3
    original[:, 0] = size
    original[:, 1] = size * (1 + 1e-7 * normal(64, seed=seed + 1))
    original[:, 2] = 0
    narrow = original.to(torch.bfloat16) if dtype == torch.bfloat16 else original * (1 + 2**-11)
    found = closeness((original, narrow.float()))
    assert found.distance is not None and found.distance < LIMIT / 10


def test_a_constant_column_that_moves_counts_by_its_size() -> None:
    original = 100 * normal(200, 4)
    original[:, 2] = 1.0
    gone = original.clone()
    gone[:, 2] = 0.0
    found = closeness((original, gone))
    assert found.column is not None and (found.column.index, found.column.spread) == (2, 1.0)
    assert found.distance is not None and found.distance > LIMIT


def test_a_column_of_rounding_errors_beside_larger_ones_is_not_blamed() -> None:
    original = normal(500, 4)
    original[:, 1] = 1e-7 * normal(500, seed=1)  # as a difference of two of the others
    variant = original.clone()
    variant[:, 1] = 1e-7 * normal(500, seed=2)
    found = closeness((original, variant))
    assert found.column is None
    assert found.distance is not None and found.distance < 1e-12


def test_a_column_of_narrow_numbers_is_not_blamed_for_its_last_bit() -> None:
    last = 1 + torch.finfo(torch.bfloat16).eps * torch.randint(2, (500,), generator=seeded(0))
    original = torch.stack([normal(500), last], 1).bfloat16()
    variant = original.clone()
    variant[:, 1] = original[:, 1].flip(0)
    assert closeness((original, variant)).column is None


@given(NAMES, st.integers(1, 6), st.integers(2, 300))
def test_columns_of_few_samples_are_judged_fairly(seed: int, samples: int, size: int) -> None:
    """An error that a whole output may have is no alarm, although some of many columns spread little by chance."""
    original = normal(samples, size, seed=seed)
    error = math.sqrt(LIMIT) * normal(samples, size, seed=seed + 1)
    found = closeness((original, original + error))
    whole = 0.5 * float(error.square().sum()) / float((original - original.mean()).square().sum())
    assert found.distance == pytest.approx(whole, rel=1e-6) or whole > LIMIT or (found.distance or 0) < LIMIT


def test_a_column_that_is_lost_is_found_from_thirty_samples_on() -> None:
    for seed in range(20):
        original = normal(32, 10, seed=seed)
        original[:, 0] *= 100
        variant = original.clone()
        variant[:, 5] = 1.5 * normal(32, seed=seed + 1000)
        found = closeness((original, variant))
        assert found.column is not None and found.column.index == 5
        assert found.distance is not None and found.distance > LIMIT


@pytest.mark.parametrize("freedom", [1, 3, 10, 100, 5000])
@pytest.mark.parametrize("chance", [1e-3, 1e-6])
def test_the_least_spread_is_below_the_quantile_of_chi_squared(freedom: int, chance: float) -> None:
    least = float(_least_spread(torch.tensor([float(freedom)], dtype=torch.float64), chance))
    exact = chi2.ppf(chance, freedom) / freedom
    assert 0 < least <= exact
    if freedom >= 10:
        assert least > 0.4 * exact


def test_without_two_values_a_column_is_not_judged() -> None:
    original = normal(1, 50)
    assert closeness((original, original + 0.1 * normal(1, 50, seed=1))).column is None
    assert float(_least_spread(torch.zeros(1, dtype=torch.float64), 1e-3)) == 0.0


def test_an_axis_whose_size_varies_has_no_columns() -> None:
    a, b = normal(2, 7, 10), normal(2, 9, 10)
    lost = [y.clone() for y in (a, b)]
    for y, other in zip((a, b), lost, strict=True):
        y[..., 0] *= 1000
        other[..., 0] = y[..., 0]
        other[..., 4] = 0
    found = closeness((a, lost[0]), (b, lost[1]))
    assert found.column is not None and (found.column.axis, found.column.index) == (2, 4)
    flat = closeness((a, lost[0]), (b.flatten(1), lost[1].flatten(1)))
    assert flat.column is None, "axes of two kinds of outputs do not mix"


def test_masked_places_count_nothing() -> None:
    original = normal(100, 6)
    original[:, 0] *= 1000
    original[::2, 4] = -math.inf
    variant = original.clone()
    variant[1::2, 4] = 0.0
    found = closeness((original, variant))
    assert found.column is not None and found.column.index == 4
    kept = original[1::2, 4]
    assert found.column.error == pytest.approx(float(kept.square().mean().sqrt()), rel=1e-5)
    assert found.column.spread == pytest.approx(float(kept.std(correction=0)), rel=1e-5)


def test_whole_numbers_count_by_the_share_of_a_column_that_differs() -> None:
    labels = torch.arange(2000).reshape(100, 20)
    other = labels.clone()
    other[:, 7] += 1
    found = closeness((labels, other))
    assert found.column is not None and found.column.words == "column 7 of 20 along axis 1: 100% differ"
    assert found.distance == pytest.approx(100 / 116 / SLACK, rel=1e-6)
    other = labels.clone()
    other[:1, 7] += 1
    assert closeness((labels, other)).distance == pytest.approx(1 / 2000), "one of a hundred shows nothing"
