"""Each share of the rows draws numbers of its own, from seeds that all generators take."""

from whet.core.workload.training import seed_everything
from whet.parallel.rank_trainer import seed_of


def test_seeds_differ_by_share_and_step_and_all_generators_take_them() -> None:
    seeds = {seed_of(2**31 - 1, rank, step) for rank in range(8) for step in (0, 1, 2, 100_000)}
    assert len(seeds) == 32
    for seed in seeds:
        seed_everything(seed)
    assert seed_of(7, 0) == 7
