"""A loader that fetches ahead gives the same batches, hands on errors, and leaves no thread behind."""

import copy
import gc
import logging
import pickle
import random
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import Rows, loaded_workload, trainer_with
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from whet.core.recipe import Step
from whet.core.workload.training import Trainer, seed_everything
from whet.measure.machine import describe
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.prefetching import Prefetched, is_prefetched
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE

WAIT_S = 60.0  # no test waits so long; one that hangs fails


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "whet prefetch"]


class Numbers:
    """Yield numbers; raise at one of them. It counts what was asked for, and whether each pass was closed."""

    def __init__(self, length: int, error_at: int = -1) -> None:
        self.length, self.error_at = length, error_at
        self.asked = 0
        self.closed = 0

    def __iter__(self) -> Iterator[Tensor]:
        try:
            for i in range(self.length):
                self.asked += 1
                if i == self.error_at:
                    raise LookupError(f"number {i}")
                yield torch.tensor([i])
        finally:
            self.closed += 1

    def __len__(self) -> int:
        return self.length


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(0, 9),
    depth=st.integers(1, 4),
    stops=st.lists(st.integers(0, 10), min_size=1, max_size=3),
    error_at=st.integers(-1, 9),
)
def test_any_passes_give_what_the_loader_gives(length: int, depth: int, stops: list[int], error_at: int) -> None:
    """Passes that end early, that end in an error, and that are read to the end, one after the other."""
    source = Numbers(length, error_at)
    loader = Prefetched(source, depth)
    for number, stop in enumerate(stops, 1):
        seen: list[int] = []
        error = ""
        try:
            for batch in loader:
                seen.append(int(batch))
                if len(seen) > stop:
                    break
        except LookupError as caught:
            error = str(caught)
            assert "in __iter__" in "".join(traceback.format_tb(caught.__traceback__))
        num_before_error = length if not 0 <= error_at < length else error_at
        assert seen == list(range(min(stop + 1, num_before_error)))
        assert bool(error) == (num_before_error < length and stop + 1 > num_before_error)
        assert source.closed == number, "the loader's own `finally` ran"
        assert not threads()


def test_no_more_than_depth_batches_are_ready() -> None:
    taken = threading.Semaphore(0)
    most: list[int] = []

    class Watched:
        given = 0

        def __iter__(self) -> Iterator[Tensor]:
            for i in range(12):
                most.append(i - self.given)
                taken.release()
                yield torch.tensor([i])

    source = Watched()
    for batch in Prefetched(source, 3):
        assert int(batch) == source.given
        source.given += 1
        for _ in range(5 if source.given == 2 else 0):  # numbers 0 and 1, then three ahead
            assert taken.acquire(timeout=WAIT_S)
    assert 2 <= max(most) <= 4


def test_the_next_batch_is_fetched_while_the_loop_computes() -> None:
    """The loop holds its second batch until the loader has been asked for the fourth one."""
    asked = threading.Event()

    def batches() -> Iterator[Tensor]:
        for i in range(6):
            if i == 3:
                asked.set()
            yield torch.tensor([i])

    class Source:
        def __iter__(self) -> Iterator[Tensor]:
            return batches()

    for batch in Prefetched(Source()):
        if int(batch) == 1:
            assert asked.wait(WAIT_S)
    assert not threads()


def test_a_pass_that_nobody_holds_ends_its_thread() -> None:
    source = Numbers(100)
    batches = iter(Prefetched(source))
    assert [int(next(batches)) for _ in range(4)] == [0, 1, 2, 3]
    assert len(threads()) == 1
    del batches
    assert not threads()
    assert source.closed == 1


def test_a_pass_in_a_cycle_ends_with_the_garbage() -> None:
    batches: Any = iter(Prefetched(Numbers(100)))
    for _ in range(3):
        next(batches)
    batches.itself = batches
    del batches
    gc.collect()
    assert not threads()


def test_a_closed_pass_is_over() -> None:
    batches: Any = iter(Prefetched(Numbers(100)))
    for _ in range(3):
        next(batches)
    batches.close()
    assert list(batches) == []
    assert not threads()
    batches.close()
    early: Any = iter(Prefetched(Numbers(100)))
    early.close()
    assert list(early) == []


def test_an_error_of_the_loop_ends_the_thread() -> None:
    def loop() -> None:
        for batch in Prefetched(Numbers(100)):
            if int(batch) == 5:
                raise RuntimeError("in the loop")

    with pytest.raises(RuntimeError, match="in the loop"):
        loop()
    gc.collect()
    assert not threads()


def test_batches_are_released_as_soon_as_the_loop_has_done_with_them() -> None:
    """Memory grows by `depth` batches, and by no more."""
    made: list[weakref.ref[Tensor]] = []

    class Source:
        def __iter__(self) -> Iterator[Tensor]:
            for i in range(20):
                batch = torch.full((2,), i)
                made.append(weakref.ref(batch))
                yield batch
                del batch

    for _ in Prefetched(Source(), 2):
        assert sum(one() is not None for one in list(made)) <= 5
    del _
    assert not [one for one in made if one() is not None]


def test_a_loader_is_seen_through() -> None:
    rows = Rows(torch.arange(12).reshape(6, 2))
    source = DataLoader(rows, batch_size=2)
    loader: Any = Prefetched(source)
    assert len(loader) == 3
    assert isinstance(loader, DataLoader)
    assert is_prefetched(loader)
    assert not is_prefetched(source)
    assert loader.dataset is rows
    assert vars(loader) is vars(source)
    loader.epoch = 3
    assert source.epoch == 3  # type: ignore[attr-defined]
    del loader.epoch
    assert not hasattr(source, "epoch")
    assert not hasattr(loader, "other")
    again = pickle.loads(pickle.dumps(loader))
    assert is_prefetched(again)
    assert [x.tolist() for x in again] == [x.tolist() for x in source]
    assert is_prefetched(copy.copy(loader))
    assert "depth=2" in repr(loader)

    class NoLength:
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

    assert Prefetched(NoLength())
    assert list(Prefetched(NoLength())) == [1, 2, 3]
    with pytest.raises(TypeError):
        len(Prefetched(NoLength()))


@pytest.mark.parametrize("generator", [None, 5])
@pytest.mark.parametrize("kind", ["shuffle", "weighted"])
def test_orders_stay_over_passes_while_the_model_draws(kind: str, generator: int | None) -> None:
    """The loop draws from the same generator between the batches, as dropout does."""

    def run(*, prefetched: bool) -> list[list[Any]]:
        own = None if generator is None else torch.Generator().manual_seed(generator)
        order: dict[str, Any] = (
            {"shuffle": True}
            if kind == "shuffle"
            else {"sampler": WeightedRandomSampler(torch.arange(1.0, 11.0), 10, generator=own)}
        )
        source = DataLoader(Rows(torch.arange(10).reshape(10, 1)), batch_size=2, generator=own, **order)
        seed_everything(3)
        loader: Iterable[Any] = Prefetched(source, 3) if prefetched else source
        return [[[x.flatten().tolist(), float(torch.rand(()))] for x in loader] for _ in range(3)]

    plain = run(prefetched=False)
    assert plain[0] != plain[1], "each pass has an order of its own"
    assert run(prefetched=True) == plain


DRAWS = {
    "python": lambda: random.random(),
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


class Noisy(Dataset[Tensor]):
    """Draw a number for each sample."""

    def __init__(self, draw: str) -> None:
        self.draw = DRAWS[draw]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, self.draw()])


@pytest.mark.parametrize("draw", DRAWS)
def test_data_that_draws_goes_on_in_the_loop(draw: str, caplog: pytest.LogCaptureFixture) -> None:
    source = DataLoader(Noisy(draw), batch_size=2, shuffle=True)
    seed_everything(1)
    plain = [(x.tolist(), DRAWS[draw]()) for x in source]
    seed_everything(1)
    with caplog.at_level(logging.WARNING, logger="whet"):
        seen = [(x.tolist(), DRAWS[draw](), len(threads())) for x in Prefetched(source)]
    assert [(x, y) for x, y, _ in seen] == plain
    assert {number for _, _, number in seen} == {0}
    assert "draws random numbers" in caplog.text


def test_a_loader_that_fills_the_same_memory_goes_on_in_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    class Reused:
        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            place = torch.zeros(2)
            for i in range(6):
                yield {"x": place.fill_(i)}

    with caplog.at_level(logging.WARNING, logger="whet"):
        seen = [(batch["x"][0].item(), len(threads())) for batch in Prefetched(Reused())]
    assert seen == [(i, 0) for i in range(6)]
    assert "same memory" in caplog.text


def test_the_thread_has_the_settings_of_the_loop() -> None:
    class Settings:
        def __iter__(self) -> Iterator[tuple[bool, str]]:
            for _ in range(5):
                yield torch.is_grad_enabled(), str(torch.get_default_device())

    with torch.no_grad(), torch.device("meta"):
        assert list(Prefetched(Settings())) == [(False, "meta")] * 5
    assert list(Prefetched(Settings())) == [(True, "cpu")] * 5


def check(batches: Any, **options: Any) -> Applies | NotApplicable:
    technique = TRAINING_TABLE["prefetch"]
    parts = Parts(MODEL, torch.optim.SGD(MODEL.parameters()), batches)
    return technique.check(parts, describe(), technique.options(**options))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


MODEL = torch.nn.Linear(1, 1)
ROWS = Rows(torch.arange(8).reshape(8, 1))


@pytest.mark.parametrize(
    ("batches", "options", "reason"),
    [
        ([1, 2], {}, "in memory already"),
        (iter([1, 2]), {}, "are an iterator"),
        (Prefetched([1, 2]), {}, "fetches ahead already"),
        (DataLoader(ROWS, num_workers=1), {}, "workers read ahead already"),
        (DataLoader(Noisy("torch")), {}, "draws random numbers"),
        (DataLoader(ROWS, collate_fn=lambda rows: torch.rand(len(rows))), {}, "draws random numbers"),
        (DataLoader(ROWS), {"depth": 0}, "depth must be 1 or more"),
        (DataLoader(ROWS), {"copies": True}, "the model is on the CPU"),
    ],
)
def test_where_it_does_not_apply_it_says_why(batches: Any, options: dict[str, Any], reason: str) -> None:
    verdict = check(batches, **options)
    assert isinstance(verdict, NotApplicable)
    assert reason in verdict.reason


def test_where_it_applies() -> None:
    for batches in (DataLoader(ROWS), DataLoader(Stream()), Numbers(3)):
        before = torch.get_rng_state()
        assert isinstance(check(batches), Applies)
        assert torch.equal(torch.get_rng_state(), before), "a check draws nothing"


def test_the_bound_is_the_longer_of_data_and_compute() -> None:
    technique = TRAINING_TABLE["prefetch"]
    for data_s, bound in ((0.0, 1.0), (1.0, 4 / 3), (2.0, 2.0), (3.0, 4 / 3)):
        profile = StepProfile(total_s=4.0, data_s=data_s, other_s=4.0 - data_s)
        assert technique.predict(profile, None, technique.options()) == pytest.approx(bound)  # type: ignore[arg-type]


def test_a_trainer_sees_the_same_data_and_leaves_no_thread() -> None:
    plain = Trainer(loaded_workload())
    trainer = trainer_with(loaded_workload(), Step(technique="prefetch", options={"depth": 4}))
    for _ in range(10):
        plain.step()
        trainer.step()
    assert len(trainer.first_batches(3)) == 3
    torch.testing.assert_close(torch.stack(trainer.losses), torch.stack(plain.losses), rtol=1e-5, atol=0)
    del trainer
    gc.collect()
    assert not threads()


@pytest.mark.gpu
def test_batches_are_copied_to_the_gpu() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    source = DataLoader(Rows(torch.arange(2_000_000).reshape(20, 100_000)), batch_size=2)
    loader = Prefetched(source, 3, device)
    for _ in range(2):
        for moved, plain in zip(loader, source, strict=True):
            assert moved.device == device
            noise = torch.randn(1000, 1000, device=device)
            _ = noise @ noise
            assert torch.equal((moved + 0).cpu(), plain)
    assert not threads()
