"""Figures as they are shown, however small or large."""

import pytest

from whet.step_profiler.figures import count, percent


@pytest.mark.parametrize(("number", "text"), [(1.0, "1"), (0.25, "0.25"), (240, "240"), (1200.4, "1,200")])
def test_counts(number: float, text: str) -> None:
    assert count(number) == text


def test_shares() -> None:
    assert (percent(0.256), percent(0.256, decimals=1)) == ("26 %", "25.6 %")
