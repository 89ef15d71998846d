"""Figures as they are shown, however small or large."""

import pytest

from whet.steps.figures import count, milliseconds, percent, size


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0.00"), (0.012345, "0.0123"), (1.2, "1.20"), (9.996, "10.0"), (99.96, "100"), (2512.3, "2,510")],
)
def test_milliseconds(ms: float, text: str) -> None:
    assert milliseconds(ms) == text


@pytest.mark.parametrize(("number", "text"), [(1.0, "1"), (0.25, "0.25"), (240, "240"), (1200.4, "1,200")])
def test_counts(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (-1500, "-1.5 KiB"), (7.6 * 1024, "7.6 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_sizes(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


def test_shares() -> None:
    assert (percent(0.256), percent(0.256, decimals=1)) == ("26 %", "25.6 %")
