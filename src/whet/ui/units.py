"""Parse durations, sizes and fractions as people write them. Each message names the option or the argument."""

import math
import re
from collections.abc import Mapping

from whet.errors import OptionError

_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_AMOUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


def seconds(option: str, text: str, *, may_be_zero: bool = False) -> float:
    """Return the seconds of "5m", "90s", "1.5h" or a number of seconds. Messages name the `option`, as "--budget".

    Raises:
        OptionError: The text is no duration, or one of 0 that may not be 0.
    """
    least = "from 0 on" if may_be_zero else "above 0"
    return _scaled(option, text, _SECONDS, f"a duration {least} such as 5m, 90s or 1h", may_be_zero=may_be_zero)


def duration_s(name: str, value: object, *, may_be_zero: bool = False) -> float:
    """Return the seconds of a number, or of text such as "90s" or "5m". Messages name the argument, as "budget_s".

    Raises:
        OptionError: It is no duration, or one of 0 that may not be 0.
    """
    if isinstance(value, str):
        return seconds(name, value, may_be_zero=may_be_zero)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 or (may_be_zero and value == 0)):
        least = "from 0 on" if may_be_zero else "above 0"
        raise OptionError(f"{name}={value!r}: give a number of seconds {least}, or text such as '90s' or '5m'")
    return float(value)


def num_bytes(option: str, text: str) -> int:
    """Return the bytes of "512MB", "2GiB" or a number of bytes. Messages name the `option`, as "--memory".

    Raises:
        OptionError: The text is no size above 0.
    """
    return int(_scaled(option, text, _BYTES, "a size above 0 such as 512MB or 2GiB"))


def amount(option: str, text: str) -> float:
    """Return the number of "15T", "300B", "1.5M" or "1e12". Messages name the `option`, as "--tokens".

    Raises:
        OptionError: The text is no number above 0.
    """
    try:
        value = float(text)
    except ValueError:
        return _scaled(option, text, _AMOUNTS, "a number above 0 such as 1e12, 300B or 15T")
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{option} {text!r}: write a number above 0 such as 1e12, 300B or 15T")
    return value


def fraction(option: str, text: str) -> float:
    """Return the fraction of "0.03" or "3%", whose range the caller checks. Messages name the `option`.

    Raises:
        OptionError: The text is no number.
    """
    number, is_percent = text.strip(), text.strip().endswith("%")
    try:
        value = float(number.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise OptionError(f"{option} {text!r}: write a fraction such as 0.03, or 3%")
    return value / 100 if is_percent else value


def _scaled(option: str, text: str, units: Mapping[str, float], what: str, *, may_be_zero: bool = False) -> float:
    """Return a number times its unit, or raise OptionError with what to write."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    number, unit = (float(found.group(1)), found.group(2).lower()) if found else (-1.0, "")
    if unit not in units or number < 0 or (number == 0 and not may_be_zero):
        raise OptionError(f"{option} {text!r}: write {what}")
    return number * units[unit]
