"""Observers against numpy on all the data at once, and against torchao's own where it has one."""

import numpy as np
import pytest
import torch

from whet.techniques.quantisation.observers import (
    NUM_LEVELS,
    OBSERVERS,
    EntropyObserver,
    HistogramObserver,
    MinMaxObserver,
    PercentileObserver,
    divergence,
)

RANDOM = torch.Generator().manual_seed(0)
BATCHES = [torch.randn(400, 64, generator=RANDOM) * scale + 0.3 for scale in (0.1, 1.0, 0.5, 3.0)]


def fed(observer, batches=BATCHES):
    for batch in batches:
        assert observer(batch) is batch
    return observer


def test_minmax_agrees_with_torchao() -> None:
    torchao = pytest.importorskip("torchao.quantization.pt2e.observer")
    theirs = torchao.MinMaxObserver(dtype=torch.uint8, qscheme=torch.per_tensor_affine)
    ours = fed(MinMaxObserver())
    for batch in BATCHES:
        theirs(batch)
    for a, b in zip(ours.calculate_qparams(), theirs.calculate_qparams(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-6)


def test_histogram_is_exact_when_its_reach_grows() -> None:
    observer = fed(HistogramObserver())
    values = torch.cat(BATCHES).flatten().numpy()
    counts, _ = np.histogram(values, observer.edges)
    assert observer.reach >= np.abs(values).max() > observer.reach / 2
    # torch bins in float32: a value next to an edge may fall on either side
    assert np.abs(np.cumsum(observer.counts) - np.cumsum(counts)).max() <= 5
    assert observer.counts.sum() == values.size


def test_percentile_agrees_with_numpy_to_a_bin() -> None:
    observer = fed(PercentileObserver())
    low, high = observer.covered()
    values = torch.cat(BATCHES).flatten().double().numpy()
    width = 1.01 * 2 * observer.reach / len(observer.counts)  # a value next to an edge may fall on either side
    for found, share in ((low, 0.0001), (high, 0.9999)):
        below, above = (np.quantile(values, share, method=method) for method in ("lower", "higher"))
        assert below - width <= found <= above + width


def reference_divergence(counts, start, stop):
    """By the definition, one bin after the other."""
    p = [float(c) for c in counts[start:stop]]
    p[0] += float(sum(counts[:start]))
    p[-1] += float(sum(counts[stop:]))
    groups: dict[int, list[int]] = {}
    for i in range(stop - start):
        groups.setdefault(i * NUM_LEVELS // (stop - start), []).append(i)
    q = [0.0] * (stop - start)
    for members in groups.values():
        filled = [i for i in members if p[i] > 0]
        for i in filled:
            q[i] = sum(float(counts[start + j]) for j in members) / len(filled)
    p_sum, q_sum = sum(p), sum(q)
    return sum(a / p_sum * np.log(a / p_sum / max(b / q_sum, 1e-12)) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize(("start", "stop"), [(0, 1000), (100, 900), (300, 700), (371, 633)])
def test_divergence_is_by_the_definition(start, stop) -> None:
    counts = np.random.default_rng(0).poisson(0.7, 1000).astype(float)
    assert divergence(counts, start, stop) == pytest.approx(reference_divergence(counts, start, stop), rel=1e-9)


def test_divergence_vanishes_where_levels_hold_the_histogram() -> None:
    counts = np.repeat(np.random.default_rng(0).integers(1, 9, NUM_LEVELS), 4).astype(float)
    assert divergence(counts, 0, counts.size) == pytest.approx(0.0, abs=1e-12)


def test_an_outlier_is_clipped_by_all_but_minmax() -> None:
    outlier = torch.full((1,), 200.0)
    batches = [torch.randn(100_000), outlier]
    assert fed(MinMaxObserver(), batches).covered()[1] == 200.0
    for kind in (PercentileObserver, EntropyObserver):
        low, high = fed(kind(), batches).covered()
        assert -8 <= low <= -3
        assert 3 <= high <= 20, kind


def test_entropy_keeps_all_of_a_uniform_distribution() -> None:
    low, high = fed(EntropyObserver(), [torch.linspace(-1.0, 3.0, 200_001)]).covered()
    assert low == pytest.approx(-1.0, abs=0.05)
    assert high == pytest.approx(3.0, abs=0.05)


def test_entropy_ignores_zeros() -> None:
    """Half of a rectifier's outputs are zeros; they are exact at any scale and must not pull the range in."""
    values = torch.randn(100_000).relu()
    low, high = fed(EntropyObserver(), [values]).covered()
    assert low == 0.0
    assert high == fed(EntropyObserver(), [values[values > 0]]).covered()[1]


@pytest.mark.parametrize("name", OBSERVERS)
def test_rounding_within_the_range_is_half_a_level_at_most(name) -> None:
    observer = fed(OBSERVERS[name]())
    scale, zero_point = (float(t) for t in observer.calculate_qparams())
    low, high = observer.covered()
    values = torch.linspace(low, high, 1001, dtype=torch.float64)
    levels = (values / scale + zero_point).round().clamp(0, 255)
    error = ((levels - zero_point) * scale - values).abs()
    assert float(error[5:-5].max()) <= scale * 0.501
    assert float(error.max()) <= scale  # the ends may lose half a level to the rounding of the zero point
    assert zero_point == round(zero_point)
    assert 0 <= zero_point <= 255


@pytest.mark.parametrize("name", OBSERVERS)
@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([], id="nothing"),
        pytest.param([torch.zeros(10)], id="zeros"),
        pytest.param([torch.full((10,), 3.0)], id="constant"),
        pytest.param([torch.tensor([1.0, float("-inf"), float("nan"), 2.0])], id="not finite"),
        pytest.param([torch.full((10,), 1e-30)], id="tiny"),
        pytest.param([torch.empty(0)], id="empty"),
    ],
)
def test_odd_inputs_give_usable_scales(name, batches) -> None:
    scale, zero_point = fed(OBSERVERS[name](), batches).calculate_qparams()
    assert torch.isfinite(scale).all()
    assert (scale > 0).all()
    assert (zero_point >= 0).all()
    assert (zero_point <= 255).all()


def test_reduced_range_for_chips_whose_sums_saturate() -> None:
    scale, zero_point = fed(MinMaxObserver(quant_max=127)).calculate_qparams()
    full, _ = fed(MinMaxObserver()).calculate_qparams()
    assert float(scale) == pytest.approx(float(full) * 255 / 127)
    assert 0 <= int(zero_point) <= 127
