"""Durations, sizes and fractions as people type them. What is wrong names the option."""

import pytest

from whet.errors import OptionError
from whet.ui.units import fraction, num_bytes, seconds


def test_what_people_type() -> None:
    assert seconds("--budget", "1.5h") == 5400
    assert seconds("--budget", "90") == 90
    assert num_bytes("--memory", "2GiB") == 2 * 2**30
    assert fraction("--tolerance", "3%") == pytest.approx(0.03)
    assert fraction("--tolerance", " 0.03 ") == 0.03
    assert fraction("--tolerance", "1e-3") == 0.001


@pytest.mark.parametrize("text", ["x", "", "%", "3 percent", "nan", "inf%", "3%%"])
def test_what_is_no_fraction(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        fraction("--tolerance", text)
    assert str(raised.value) == f"--tolerance {text!r}: write a fraction such as 0.03, or 3%"


@pytest.mark.parametrize("text", ["5x", "", "0s", "-1s", "soon"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        seconds("--budget", text)
    assert str(raised.value) == f"--budget {text!r}: write a duration above 0 such as 5m, 90s or 1h"


@pytest.mark.parametrize("text", ["5x", "", "0", "-1MB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(OptionError) as raised:
        num_bytes("--memory", text)
    assert str(raised.value) == f"--memory {text!r}: write a size above 0 such as 512MB or 2GiB"
