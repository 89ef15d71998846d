import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.ui import figures


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


def test_times_in_smaller_units() -> None:
    assert figures.milliseconds(0.25) == "250 µs"
    assert figures.milliseconds(12_340) == "12.3 s"
    assert figures.milliseconds(0.31, like=56.1) == "0.310 ms"
    assert figures.milliseconds(None) == "—"


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 µs"), (1, "0.00100 µs"), (999, "0.999 µs"), (12_345, "12.3 µs"), (999_600, "1.00 ms"), (12.3e9, "12.3 s"),
     (4.2e12, "4,200 s"), (-1500, "−1.50 µs")],
)  # fmt: skip
def test_nanoseconds(time_ns: float, text: str) -> None:
    assert figures.nanoseconds(time_ns) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0%"), (0.00001, "<0.01%"), (-0.00001, "≈0%"), (0.0042, "0.42%"), (0.00996, "1.0%"), (0.0182, "1.8%"),
        (0.0996, "10%"), (0.31, "31%"), (1, "100%"), (-0.002, "−0.20%"), (None, "—"), (math.nan, "—"), (math.inf, "∞"),
    ],
)  # fmt: skip
def test_percent(fraction: float | None, text: str) -> None:
    assert figures.percent(fraction) == text


def test_percent_with_the_decimals_of_its_column() -> None:
    assert [figures.percent(share, decimals=1) for share in (0.256, 0.0, -0.5)] == ["25.6%", "0.0%", "−50.0%"]


@pytest.mark.parametrize(("number", "text"), [(1.0, "1"), (0.25, "0.25"), (240, "240"), (1200.4, "1,200")])
def test_counts(number: float, text: str) -> None:
    assert figures.count(number) == text


def test_changes_of_memory_carry_their_sign() -> None:
    assert [figures.bytes_change(n) for n in (5, 2048, -5_000_000)] == ["0", "+2.05 kB", "−5.00 MB"]


def test_one_line_takes_out_what_steers_a_terminal() -> None:
    assert figures.one_line("a\n  b\x1b[31m\x07c") == "a b[31mc"
