"""How many replicas --replicas asks for."""

import pytest

from whet.errors import OptionError
from whet.server.replica_bounds import Bounds, bounds


@pytest.mark.parametrize(
    ("text", "found"), [("1", Bounds(1, 1)), ("3", Bounds(3, 3)), ("2-8", Bounds(2, 8)), (" 4-4", Bounds(4, 4))]
)
def test_numbers_of_replicas(text: str, found: Bounds) -> None:
    assert bounds(text) == found


@pytest.mark.parametrize("text", ["", "0", "x", "2-", "-3", "0-2", "8-2", "1-2-3", "1.5", "²", "100000"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="--replicas"):
        bounds(text)
