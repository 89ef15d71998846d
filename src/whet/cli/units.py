"""Parse durations and sizes as people type them."""

import re

from whet.errors import OptionError

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


def seconds(text: str) -> float:
    """Return the seconds of "5m", "90s", "1.5h" or a number of seconds.

    Raises:
        OptionError: The text is no duration.
    """
    number, unit = _split(text, "a duration", "5m, 90s or 1h")
    if unit not in _SECONDS or number <= 0:
        raise OptionError(f"{text!r} is no duration above 0; write 5m, 90s or 1h")
    return number * _SECONDS[unit]


def num_bytes(text: str) -> int:
    """Return the bytes of "512MB", "2GiB" or a number of bytes.

    Raises:
        OptionError: The text is no size.
    """
    number, unit = _split(text, "a size", "512MB or 2GiB")
    if unit not in _BYTES or number <= 0:
        raise OptionError(f"{text!r} is no size above 0; write 512MB or 2GiB")
    return int(number * _BYTES[unit])


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None:
        raise OptionError(f"{text!r} is not {what}; write {example}")
    return float(found.group(1)), found.group(2).lower()
