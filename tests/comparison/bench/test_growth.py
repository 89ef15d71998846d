import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.comparison.bench.growth import fit_growth


@given(st.floats(-1, 3), st.floats(-1, 3), st.floats(1e-6, 1e3))
def test_a_power_law_is_found_exactly(a: float, b: float, c: float) -> None:
    sizes = [{"batch": n, "seq": m} for n, m in itertools.product((1, 8, 32), (128, 512, 2048))]
    growths = fit_growth("time", sizes, [c * s["batch"] ** a * s["seq"] ** b for s in sizes])
    assert [g.against for g in growths] == ["batch", "seq"]
    assert [g.exponent for g in growths] == pytest.approx([a, b], abs=1e-6)


def test_the_interval_covers_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    sizes = [{"seq": 2**i} for i in range(5, 12)]
    covered = 0
    for _ in range(300):
        costs = [s["seq"] ** 1.5 * float(np.exp(random.normal(0, 0.1))) for s in sizes]
        (growth,) = fit_growth("time", sizes, costs)
        assert growth.ci95 is not None
        covered += growth.ci95[0] <= 1.5 <= growth.ci95[1]
    assert 0.91 <= covered / 300 <= 0.985


def test_two_sizes_give_an_exponent_without_an_interval() -> None:
    (growth,) = fit_growth("time", [{"batch": 1}, {"batch": 4}], [1.0, 16.0])
    assert growth.exponent == pytest.approx(2.0)
    assert growth.ci95 is None


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [{}],
        [{"batch": 2}],
        [{"batch": 2}, {"batch": 2}],
        [{"batch": 1, "seq": 1}, {"batch": 2, "seq": 2}, {"batch": 4, "seq": 4}],
    ],
)
def test_nothing_is_fitted_where_nothing_varies_alone(sizes: list[dict[str, int]]) -> None:
    assert fit_growth("time", sizes, [1.0] * len(sizes)) == []
