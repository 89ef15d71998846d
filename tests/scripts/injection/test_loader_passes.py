"""Another loader in the place of a script's own, from the middle of a pass on: the same batches in the same order."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from whet.scripts.injection.loader_passes import AnyLoader, LoaderPasses
from whet.techniques.mechanisms.worker_loader import with_workers


class Numbers(Dataset[int]):
    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> int:
        return index


class Counted:
    """Give a loader's batches, and count them."""

    def __init__(self, loader: AnyLoader) -> None:
        self.loader = loader
        self.num_given = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.num_given += 1
            yield batch


@pytest.fixture
def passes() -> Iterator[LoaderPasses]:
    found = LoaderPasses()
    yield found
    found.end()


def given_in(loader: AnyLoader, num_passes: int, at: int = -1, replace: Any = None) -> list[list[int]]:
    """Return the batches of some passes; random numbers are drawn in each step. `replace` is called in step `at`."""
    torch.manual_seed(3)
    found = []
    for _ in range(num_passes):
        for batch in loader:
            if len(found) == at:
                replace()
            torch.rand(3)  # as dropout does
            found.append(batch.tolist())
    return [*found, [int(torch.randint(1 << 30, ()))]]


@given(
    number=st.integers(1, 20),
    batch_size=st.integers(1, 6),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    owns_generator=st.booleans(),
    at=st.integers(0, 8),
)
@settings(max_examples=60, deadline=None)
def test_batches_and_random_numbers_are_the_same(
    number: int, batch_size: int, drop_last: bool, shuffle: bool, owns_generator: bool, at: int
) -> None:
    def made() -> AnyLoader:
        generator = torch.Generator().manual_seed(1) if owns_generator else None
        return DataLoader(Numbers(number), batch_size, shuffle=shuffle, drop_last=drop_last, generator=generator)

    expected = given_in(made(), 2)
    counted: list[Counted] = []

    def change(loader: AnyLoader) -> Counted:
        counted.append(Counted(loader))
        return counted[-1]

    passes = LoaderPasses()
    try:
        assert given_in(made(), 2, at, lambda: passes.replace(change)) == expected
    finally:
        passes.end()
    assert sum(one.num_given for one in counted) == max(0, len(expected) - 2 - at)


def test_workers_take_over(passes: LoaderPasses) -> None:
    expected = given_in(DataLoader(Numbers(12), 2, shuffle=True), 2)
    loader = DataLoader(Numbers(12), 2, shuffle=True)
    ids: list[int] = []

    def change(given: AnyLoader) -> AnyLoader:
        ids.append(id(given.dataset))
        return with_workers(given, num_workers=1, prefetch_factor=2, persistent_workers=True)

    assert given_in(loader, 2, 2, lambda: passes.replace(change)) == expected
    assert ids == [id(loader.dataset)] * 2


def test_samples_without_batches(passes: LoaderPasses) -> None:
    loader: AnyLoader = DataLoader(Numbers(5), batch_size=None, collate_fn=torch.tensor)
    seen = []
    for sample in loader:
        if len(seen) == 1:
            passes.replace(Counted)
        seen.append(int(sample))
    assert seen == [0, 1, 2, 3, 4]


def test_the_present_pass_goes_on_where_it_cannot_be_told_what_is_left(passes: LoaderPasses) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    counted: list[Counted] = []
    loader: AnyLoader = DataLoader(Stream(), 2)
    for at, batch in enumerate(loader):
        if not at:
            passes.replace(lambda given: counted.append(Counted(given)) or counted[-1])
        assert batch.tolist() == [2 * at, 2 * at + 1]
    assert [one.num_given for one in counted] == [0]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert [one.num_given for one in counted] == [2]


def test_which_loader_the_loop_goes_over(passes: LoaderPasses) -> None:
    class Own(DataLoader[int]):
        pass

    first, second = DataLoader(Numbers(4), 2), DataLoader(Numbers(4), 2)
    assert passes.loader is None
    next(iter(first))  # a look at one batch
    assert passes.loader is None
    for _ in first:
        assert passes.loader is first
    assert passes.loader is None
    for _ in Own(Numbers(4), 2):
        assert passes.loader is None, "a class of the script's own is left alone"
    batches = iter(second)
    next(batches)
    assert passes.loader is second
    assert len(batches) == 2  # type: ignore[arg-type]


def test_dataloader_is_as_it_was_in_the_end() -> None:
    before = DataLoader.__iter__
    passes = LoaderPasses()
    assert DataLoader.__iter__ is not before
    passes.end()
    assert DataLoader.__iter__ is before
