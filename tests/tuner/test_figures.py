import math

import pytest

from whet.tuner import figures
from whet.tuner.result import Agreement


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.000123, "0.000123"), (0.0456, "0.0456"), (1.0, "1.00"), (9.996, "10.0"), (18.42, "18.4"), (164.3, "164"),
        (999.7, "1,000"), (1834.2, "1,830"), (0, "0"), (-2.5, "−2.50"), (None, "—"), (math.nan, "—"), (math.inf, "∞"),
    ],
)  # fmt: skip
def test_digits(value: float | None, text: str) -> None:
    assert figures.digits(value) == text


def test_units() -> None:
    assert figures.duration(18.42) == "18.4 ms"
    assert figures.duration(0.0414) == "41.4 µs"
    assert figures.duration(2500) == "2.50 s"
    assert figures.duration(0.31, like=56.1) == "0.310 ms"
    assert figures.duration(None) == "—"
    assert figures.num_bytes(24_700_000) == "24.7 MB"
    assert figures.num_bytes(940_000_000, like=1_450_000_000) == "0.940 GB"
    assert figures.num_bytes(512) == "0.512 kB"
    assert figures.num_bytes(None) == "—"
    assert figures.operations(236e6) == "236 MFLOP"
    assert figures.from_to("164 ms", "18.4 ms") == "164 → 18.4 ms"
    assert figures.from_to("1.2 s", "18.4 ms") == "1.2 s → 18.4 ms"


def test_ratios_and_intervals() -> None:
    assert figures.ratio(0.984) == "0.98×"
    assert figures.ratio(1.0) == "1.00×"
    assert figures.ratio(12.34) == "12.3×"
    assert figures.ratio(0.0041) == "0.00410×"
    assert figures.interval((3.307, 3.541)) == "3.31–3.54"
    assert figures.interval((0.0, math.inf)) == "—"
    assert figures.interval(None) == "—"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0%"), (0.00001, "<0.01%"), (-0.00001, ">−0.01%"), (0.0042, "0.42%"), (0.0182, "1.8%"), (0.31, "31%"),
        (-0.002, "−0.20%"), (None, "—"), (math.inf, "∞"),
    ],
)  # fmt: skip
def test_percent(fraction: float | None, text: str) -> None:
    assert figures.percent(fraction) == text


def test_agreement_is_never_rounded_up_to_perfect() -> None:
    assert figures.cosine(0.999999) == ">0.9999"
    assert figures.cosine(1.0) == "1.0000"
    found = Agreement(relative_error=0.037, cosine=0.9993, top1=0.991)
    assert figures.agreement(found) == "cosine 0.9993, error 3.7%, top-1 99%"
    assert figures.agreement(None) == "—"


def test_one_line_takes_out_what_steers_a_terminal() -> None:
    assert figures.one_line("a\n  b\x1b[31m\x07c") == "a b[31mc"
