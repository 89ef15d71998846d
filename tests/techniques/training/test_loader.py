"""A DataLoader with workers gives the batches of the one without, pass after pass."""

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tiny_training import Rows, loaded_workload, trainer_with
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from whet.core.recipe import Step
from whet.core.workload.training import Trainer, seed_everything
from whet.measure.machine import Limits, describe
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.random_draws import first_sample
from whet.techniques.mechanisms.worker_loader import WorkerLoader, with_workers
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE

MODEL = torch.nn.Linear(1, 1)
ROWS = Rows(torch.arange(20).reshape(10, 2))


def check(batches: Any, **options: Any) -> Applies | NotApplicable:
    technique = TRAINING_TABLE["loader"]
    parts = Parts(MODEL, torch.optim.SGD(MODEL.parameters()), batches)
    return technique.check(parts, describe(), technique.options(**options))


def passes(loader: DataLoader[Any], number: int = 3) -> list[list[Any]]:
    """Return the batches of some passes, while the loop draws from the same generator."""
    seed_everything(4)
    return [[(x.tolist(), float(torch.rand(()))) for x in loader] for _ in range(number)]


def loaders() -> dict[str, DataLoader[Any]]:
    own = torch.Generator().manual_seed(7)
    return {
        "shuffled": DataLoader(ROWS, batch_size=3, shuffle=True),
        "own generator, short batch dropped": DataLoader(
            ROWS, batch_size=3, shuffle=True, generator=own, drop_last=True
        ),
        "batch sampler": DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 4, drop_last=False)),
        "no batches": DataLoader(ROWS, batch_size=None, sampler=RandomSampler(ROWS)),
    }


@pytest.mark.parametrize("name", loaders())
def test_the_order_stays_in_every_pass(name: str) -> None:
    """PyTorch's own workers that stay give another order from the second pass on."""
    plain, source = loaders()[name], loaders()[name]
    made = with_workers(source, num_workers=1, persistent_workers=True, prefetch_factor=2)
    assert isinstance(made, DataLoader)
    assert made.dataset is source.dataset
    assert made.collate_fn is source.collate_fn
    assert made.generator is source.generator
    whose = "sampler" if source.batch_sampler is None or source.batch_size is not None else "batch_sampler"
    assert getattr(made, whose) is getattr(source, whose)
    assert len(made) == len(plain)
    assert passes(made) == passes(plain)


def test_workers_that_end_keep_the_order_too() -> None:
    made = with_workers(DataLoader(ROWS, batch_size=5, shuffle=True), num_workers=1, persistent_workers=False)
    assert passes(made, 2) == passes(DataLoader(ROWS, batch_size=5, shuffle=True), 2)


def test_a_loader_whose_workers_stay_already_keeps_its_own_order() -> None:
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "num_workers": 1, "persistent_workers": True}
    made = with_workers(DataLoader(ROWS, **settings), prefetch_factor=3)
    assert passes(made, 3) == passes(DataLoader(ROWS, **settings), 3)
    again = with_workers(with_workers(DataLoader(ROWS, batch_size=5, shuffle=True), num_workers=1), prefetch_factor=3)
    assert again._draws_each_pass


def test_two_passes_at_a_time_and_passes_that_end_early() -> None:
    made = with_workers(DataLoader(ROWS, batch_size=2), num_workers=1, persistent_workers=True)
    first = iter(made)
    assert next(first).tolist() == [[0, 1], [2, 3]]
    assert [x[0, 0].item() for x in made] == [0, 4, 8, 12, 16], "a second pass begins at the beginning"
    assert [x[0, 0].item() for x in first] == [4, 8, 12, 16], "and the first one goes on"
    assert list(first) == []
    for x in made:
        assert x[0, 0].item() == 0
        break
    assert [x[0, 0].item() for x in made] == [0, 4, 8, 12, 16]


class Failing(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            raise LookupError("sample 2")
        return torch.tensor(index)


def test_an_error_in_a_worker_comes_through_and_the_next_pass_begins_anew() -> None:
    made = with_workers(DataLoader(Failing()), num_workers=1, persistent_workers=True)
    for _ in range(2):
        seen: list[Tensor] = []
        with pytest.raises(LookupError, match="sample 2"):
            seen.extend(made)
        assert [x.item() for x in seen] == [0, 1]


class Reads(Dataset[Any]):
    """Give what a function returns."""

    def __init__(self, read: Any, **attributes: Any) -> None:
        self.read = read
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Own(DataLoader[Any]):
    pass


def counting() -> Any:
    """Return a function that gives another number each time, without a generator of its own."""
    numbers = iter(range(1000))
    return lambda index: next(numbers)


@pytest.mark.parametrize(
    ("batches", "options", "reason"),
    [
        ([1, 2], {}, "come from a list, not from a torch DataLoader"),
        (Own(ROWS), {}, "come from a Own"),
        (DataLoader(Stream()), {}, "each worker would repeat all of it"),
        (DataLoader(Reads(lambda i: random.random())), {}, "draws random numbers, and workers would draw others"),
        (DataLoader(Reads(lambda i: np.random.rand())), {}, "draws random numbers"),
        (DataLoader(Reads(lambda i: torch.rand(2))), {}, "draws random numbers"),
        (DataLoader(ROWS, collate_fn=lambda rows: torch.rand(1)), {}, "draws random numbers"),
        (DataLoader(Reads(int, steps=[{"rng": np.random.default_rng(1)}])), {}, "a random generator of its own"),
        (DataLoader(Reads(int, generator=torch.Generator())), {}, "a random generator of its own"),
        (DataLoader(Reads(counting())), {}, "two reads of one sample differ"),
        (DataLoader(Reads({"a": 1}.__getitem__)), {}, r"sample 0 cannot be read to see .*KeyError\(0\)"),
        (DataLoader(ROWS), {"num_workers": 10**6}, "1000000 workers for"),
        (DataLoader(ROWS), {"num_workers": 0}, "0 workers for"),
        (DataLoader(ROWS), {"prefetch_factor": 0}, "prefetch_factor must be 1 or more"),
        (DataLoader(ROWS), {"prefetch_factor": 10**13}, "do not fit into the free part of /dev/shm"),
        (DataLoader(ROWS), {"pin_memory": True}, "the model is on the CPU"),
        (with_workers(DataLoader(ROWS), num_workers=1, persistent_workers=True), {}, "has these settings already"),
        (
            with_workers(DataLoader(ROWS), num_workers=1, persistent_workers=True),
            {"persistent_workers": False},
            "would change the order",
        ),
    ],
)
def test_where_it_does_not_apply_it_says_why(batches: Any, options: dict[str, Any], reason: str) -> None:
    before = torch.get_rng_state()
    verdict = check(batches, **options)
    assert isinstance(verdict, NotApplicable)
    assert re.search(reason, verdict.reason), verdict.reason
    assert torch.equal(torch.get_rng_state(), before)


class Batched(Reads):
    """Fetch several samples in one call, which PyTorch prefers."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [torch.rand(1) for _ in indices]


def test_the_sample_is_read_as_the_loader_reads_it() -> None:
    assert first_sample(DataLoader(Batched(int))).draws
    assert not first_sample(DataLoader(Batched(int), batch_size=None)).draws
    found = first_sample(DataLoader(ROWS, batch_size=3))
    assert (found.num_bytes, found.is_same, found.is_on_gpu, found.error) == (16, True, False, "")
    with_nan = Reads(lambda i: {"x": torch.tensor(float("nan")), "name": "a", "flag": True})
    assert first_sample(DataLoader(with_nan)).is_same


def test_the_bound_shares_the_reading_among_the_workers() -> None:
    technique = TRAINING_TABLE["loader"]
    profile = StepProfile(total_s=10.0, data_s=8.0, other_s=2.0)
    for num_workers, bound in ((1, 10 / 8), (2, 10 / 4), (4, 10 / 2), (8, 10 / 2)):
        options = technique.options(num_workers=num_workers)
        assert technique.predict(profile, None, options) == pytest.approx(bound)  # type: ignore[arg-type]


def test_fewer_threads_may_leave_a_core_to_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.techniques.runtime.threads.thread_counts", lambda: (2, 1))
    technique = TRAINING_TABLE["threads"]
    limits = Limits(read_bandwidth=1e12, gemm={"float32": 1e9}, operator_s=1e-9)
    waiting = StepProfile(total_s=10.0, data_s=5.0, products_s=5.0)
    assert technique.predict(waiting, limits, technique.options(num_threads=1)) == pytest.approx(2.0)
    at_work = StepProfile(total_s=10.0, products_s=10.0)
    assert technique.predict(at_work, limits, technique.options(num_threads=1)) == 1.0
    # products of 4.5e9 operations take 4.5 s on two cores, and on one at three quarters of their rate 6 s in place of 5
    at_limit = StepProfile(total_s=10.0, data_s=5.0, products_s=5.0, flops=45 * 10**8)
    assert technique.predict(at_limit, limits, technique.options(num_threads=1)) == pytest.approx(10 / 6)
    assert technique.predict(at_limit, limits, technique.options(num_threads=2)) == pytest.approx(2.0)
    autocast = at_limit.model_copy(update={"flops": 10**11})  # products in bfloat16, beyond what float32 allows
    assert technique.predict(autocast, limits, technique.options(num_threads=1)) == pytest.approx(2.0)


def test_a_trainer_sees_the_same_data_with_both_techniques() -> None:
    plain = Trainer(loaded_workload())
    trainer = trainer_with(loaded_workload(), Step(technique="prefetch"), Step(technique="loader"))
    for _ in range(9):
        plain.step()
        trainer.step()
    assert isinstance(trainer._passes, WorkerLoader), "seen through prefetch"
    torch.testing.assert_close(torch.stack(trainer.losses), torch.stack(plain.losses), rtol=1e-5, atol=0)
    # A look at the first batches while a pass is going on does not disturb it.
    assert len(trainer.first_batches(2)) == 2
    for _ in range(4):
        plain.step()
        trainer.step()
    torch.testing.assert_close(torch.stack(trainer.losses), torch.stack(plain.losses), rtol=1e-5, atol=0)
