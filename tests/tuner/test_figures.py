import math

from whet.tuner import figures
from whet.tuner.result import Agreement


def test_times_are_given_in_milliseconds() -> None:
    assert figures.duration(18.42) == "18.4 ms"
    assert figures.duration(0.31, like=56.1) == "0.310 ms"
    assert figures.duration(None) == "—"
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


def test_agreement_is_never_rounded_up_to_perfect() -> None:
    assert figures.cosine(0.999999) == ">0.9999"
    assert figures.cosine(1.0) == "1.0000"
    found = Agreement(relative_error=0.037, cosine=0.9993, top1=0.991)
    assert figures.agreement(found) == "cosine 0.9993, error 3.7%, top-1 99%"
    assert figures.agreement(None) == "—"
