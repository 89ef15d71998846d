import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.000123, "0.000123"), (0.0456, "0.0456"), (1.0, "1.00"), (9.996, "10.0"), (18.42, "18.4"), (164.3, "164"),
        (999.7, "1,000"), (1834.2, "1,830"), (0, "0"), (-2.5, "−2.50"), (None, "—"), (math.nan, "—"), (math.inf, "∞"),
    ],
)  # fmt: skip
def test_digits(value: float | None, text: str) -> None:
    assert figures.digits(value) == text


@given(st.floats(1e-9, 1e15))
def test_three_digits_say_the_value(value: float) -> None:
    assert float(figures.digits(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_units() -> None:
    assert figures.duration(18.42e-3) == "18.4 ms"
    assert figures.duration(41.4e-6) == "41.4 µs"
    assert figures.duration(0.9996e-3) == "1.00 ms"
    assert figures.duration(2.5) == "2.50 s"
    assert figures.duration(0.0) == "0 µs"
    assert figures.duration(0.31e-3, like=56.1e-3) == "0.310 ms"
    assert figures.duration(None) == figures.num_bytes(None) == "—"
    assert figures.num_bytes(24_700_000) == "24.7 MB"
    assert figures.num_bytes(940_000_000, like=1_450_000_000) == "0.940 GB"
    assert [figures.num_bytes(n) for n in (0, 512, -12, 1500, 999_700)] == [
        "0 B",
        "512 B",
        "−12 B",
        "1.50 kB",
        "1.00 MB",
    ]
    assert figures.operations(236e6) == "236 MFLOP"
    assert figures.operations(2.5e9, short=True) == "2.50 G"
