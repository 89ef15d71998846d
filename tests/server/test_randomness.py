"""Numbers that depend on seed, index and purpose, and on nothing else."""

import numpy as np
from scipy import stats

from whet.server.randomness import make_seed, uniform, uniforms


def numbers(seed: int, count: int) -> np.ndarray:
    return uniforms(np.full(count, seed, np.uint64), np.arange(count, dtype=np.uint64))


def test_uniform_whatever_varies() -> None:
    seeds = np.arange(20_000, dtype=np.uint64)
    by_seed = uniforms(seeds, np.zeros(20_000, np.uint64))
    for drawn in (numbers(1, 20_000), numbers(2**64 - 1, 20_000), by_seed):
        assert drawn.dtype == np.float32
        assert 0 <= drawn.min() <= drawn.max() < 1
        assert stats.kstest(drawn, "uniform").pvalue > 1e-3


def test_unrelated_across_seeds_and_neighbours() -> None:
    first = numbers(7, 20_000)
    assert abs(np.corrcoef(first, numbers(8, 20_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


def test_a_number_is_the_same_alone_and_in_company() -> None:
    together = uniforms(np.array([5, 6, 5], np.uint64), np.array([9, 9, 2], np.uint64))
    assert together.tolist() == [uniform(5, 9), uniform(6, 9), uniform(5, 2)]


def test_seeds() -> None:
    assert make_seed(5) == 5
    assert make_seed(-1) == 2**64 - 1
    assert make_seed(None) != make_seed(None)
