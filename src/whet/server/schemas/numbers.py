"""Write ranges of numbers as regular expressions. Integers are exact, whatever their size."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from whet.server.schemas.forms import Number, SchemaRefused, integers

MOST_DIGITS = 100  # of an integer without a bound
_FRACTION = r"(\.[0-9]{1,40})?"
# 100 digits and an exponent of 199 make less than 1e300: what any double holds.
ANY_NUMBER = rf"-?(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}}){_FRACTION}([eE][+-]?(0?[0-9]{{1,2}}|1[0-9]{{2}}))?"
_FAR = 10**MOST_DIGITS
_LARGEST = 9 * 10**18  # of a bounded number with a point: llguidance holds its digits before the point in 64 bits
_DIGITS = 15  # that any double gives back as they were
_TINY = Decimal("1e-15")
_MOST_STEP = 2**31  # of multipleOf: llguidance holds it in 32 bits


def integer_range(low: int | None, high: int | None) -> str:
    """Return the regular expression of the integers from `low` to `high`; None stands for no bound."""
    low, high = -_FAR + 1 if low is None else low, _FAR - 1 if high is None else high
    parts = []
    if low < 0:
        parts += [f"-{part}" for part in _from_to(max(1, -high), -low)]
    if high >= 0:
        parts += _from_to(max(0, low), high)
    return f"({'|'.join(parts)})"


def _from_to(low: int, high: int) -> list[str]:
    """Return expressions of the integers from `low`, which is at least 0, to `high`."""
    found = []
    if low == 0:
        found.append("0")
        low = 1
    while low <= high:
        size = len(str(low))
        last = min(high, 10**size - 1)
        if high >= 10**size and low == 10 ** (size - 1):  # every integer of so many digits, or of more
            larger = len(str(high)) - (high != 10 ** len(str(high)) - 1)
            found.append(f"[1-9][0-9]{{{size - 1},{larger - 1}}}")
            low = 10**larger
            continue
        found.append(_of_one_size(str(low), str(last)))
        low = last + 1
    return found


def _of_one_size(low: str, high: str) -> str:
    """Return the expression of the numbers between two of the same number of digits."""
    if not low:
        return ""
    if low == high:
        return low
    rest = len(low) - 1
    if low[0] == high[0]:
        return low[0] + _of_one_size(low[1:], high[1:])
    parts, first, last = [], int(low[0]), int(high[0])
    if low[1:].strip("0"):
        parts.append(low[0] + _of_one_size(low[1:], "9" * rest))
        first += 1
    after = None
    if high[1:].strip("9"):
        after = high[0] + _of_one_size("0" * rest, high[1:])
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    if after is not None:
        parts.append(after)
    return parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"


def expression(number: Number) -> str | None:
    """Return the regular expression of a form; None where llguidance has to write it (see `as_schema`).

    Raises:
        SchemaRefused: A bound has more than 100 digits.
    """
    for bound in (number.low, number.high):
        if bound is not None and abs(bound) >= _FAR:
            raise SchemaRefused(f"a bound of its numbers has more than {MOST_DIGITS} digits: use a smaller one")
    if number.is_integer and number.multiple is not None and number.multiple.numerator == 1:
        number = Number(number.low, number.high, number.is_low_open, number.is_high_open, True)
    if number.is_integer and number.multiple is None:
        return integer_range(*integers(number))
    if number.low is not None and number.low == number.high and number.multiple is None:
        return _exactly(number.low)
    return ANY_NUMBER if number == Number() else None


def _exactly(value: Fraction) -> str:
    """Return the expression of one number."""
    if value.denominator == 1:
        return f"{value.numerator}"
    text = format(Decimal(repr(float(value))), "f")
    return text.replace(".", r"\.")


def as_schema(number: Number) -> dict[str, object]:
    """Return a JSON schema of a form that llguidance enforces as it stands, or of a part of it.

    Its bounds have 15 digits at most, rounded inwards, and include themselves: a number near an excluded bound could
    be read as the bound.

    Raises:
        SchemaRefused: No number that fits is left, or multipleOf has too many digits.
    """
    schema: dict[str, object] = {"type": "integer" if number.is_integer else "number"}
    if number.multiple is not None:
        schema["multipleOf"] = _step(number.multiple)
    if number.is_integer:
        low, high = integers(number)
        most = 10**_DIGITS
        low, high = max(-most, -most if low is None else low), min(most, most if high is None else high)
        schema |= {"minimum": low, "maximum": high}
        if low > high:
            raise SchemaRefused("multipleOf is enforced for integers of up to 15 digits: use bounds within them")
        return schema
    low_bound = _inward(number.low, is_open=number.is_low_open, up=True)
    high_bound = _inward(number.high, is_open=number.is_high_open, up=False)
    if low_bound > high_bound:
        raise SchemaRefused("no number of 15 digits lies between its bounds: use wider ones")
    return schema | {"minimum": _plain(low_bound), "maximum": _plain(high_bound)}


def _inward(bound: Fraction | None, *, is_open: bool, up: bool) -> Decimal:
    """Return the first number of 15 digits from a bound on, upwards or downwards."""
    if bound is None:
        return Decimal(-_LARGEST if up else _LARGEST)
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    context = Context(prec=_DIGITS, rounding=rounding)
    value = context.divide(Decimal(bound.numerator), Decimal(bound.denominator))
    if value.adjusted() < -_DIGITS:  # so near to 0 that the digits would fill lines
        value = value.quantize(_TINY, rounding=rounding) if value else value
    if is_open and Fraction(value) == bound:
        step = Decimal(1).scaleb(value.adjusted() - _DIGITS + 1) if value else _TINY
        step = max(step, _TINY)
        value = context.add(value, step if up else -step)
    return max(value, Decimal(-_LARGEST)) if up else min(value, Decimal(_LARGEST))


def _plain(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _step(multiple: Fraction) -> int | float:
    """Return a value of multipleOf that llguidance reads as it is.

    Raises:
        SchemaRefused: It has too many digits.
    """
    value = float(multiple)
    read, exponent = value, 0
    while read != math.floor(read) and exponent < 12:
        read, exponent = read * 10.0, exponent + 1  # as llguidance does
    if value <= 0 or read > _MOST_STEP or Fraction(int(read), 10**exponent) != multiple:
        raise SchemaRefused(
            f"multipleOf {value:g} cannot be enforced: use one with fewer digits, such as 1, 0.5 or 0.25"
        )
    return int(value) if value == math.floor(value) else value
