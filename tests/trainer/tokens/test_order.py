"""The order is a permutation in each epoch, and depends on the position alone."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.trainer.tokens.order import Order

SEEDS = st.integers(0, 2**64 - 1)


@given(st.integers(1, 40), SEEDS, st.integers(0, 5), st.booleans())
def test_every_item_comes_once_in_each_epoch(num_items: int, seed: int, epoch: int, shuffle: bool) -> None:
    order = Order(num_items, seed, shuffle=shuffle)
    found = [order.item(epoch * num_items + place) for place in range(num_items)]
    assert sorted(found) == list(range(num_items))
    if not shuffle:
        assert found == list(range(num_items))


@given(st.integers(1, 12), SEEDS, st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_an_item_depends_on_its_position_alone(num_items: int, seed: int, positions: list[int]) -> None:
    """In any order of asking, and in an object of its own."""
    order = Order(num_items, seed)
    found = [order.item(position) for position in positions]
    assert found == [Order(num_items, seed).item(position) for position in positions]
    copied = pickle.loads(pickle.dumps(order))
    assert found == [copied.item(position) for position in positions]


@given(st.integers(1, 12), SEEDS, st.integers(0, 60), st.integers(0, 40))
def test_items_from_a_position_on(num_items: int, seed: int, position: int, count: int) -> None:
    order = Order(num_items, seed)
    assert order.items(position, count).tolist() == [order.item(position + i) for i in range(count)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second, other = Order(50, 1).items(0, 50), Order(50, 1).items(50, 50), Order(50, 2).items(0, 50)
    assert len({tuple(found.tolist()) for found in (first, second, other)}) == 3


def test_each_place_is_as_likely_as_any_other() -> None:
    """The chi-squared statistic of 4,000 epochs of 4 items: 9 degrees of freedom, where 27.9 is one in a thousand."""
    order, num_epochs = Order(4, 3), 4000
    counts = [[0] * 4 for _ in range(4)]
    for position, item in enumerate(order.items(0, 4 * num_epochs).tolist()):
        counts[position % 4][item] += 1
    expected = num_epochs / 4
    assert sum((count - expected) ** 2 / expected for row in counts for count in row) < 27.9


def test_the_order_stays_from_version_to_version() -> None:
    """A training that was begun with this order goes on with it."""
    assert Order(6, 0).items(0, 12).tolist() == [0, 2, 1, 5, 4, 3, 5, 3, 2, 4, 1, 0]
    assert Order(6, 2**64 - 1).items(12, 6).tolist() == [5, 2, 3, 0, 1, 4]


def test_numbers_out_of_range_are_refused() -> None:
    for num_items, seed in ((0, 0), (-1, 0), (1, -1), (1, 2**64)):
        with pytest.raises(OptionError):
            Order(num_items, seed)
    with pytest.raises(OptionError, match="a position is 0 or more; got -1"):
        Order(3, 0).item(-1)
