"""Describe the values that a JSON schema allows as alternatives, each of one JSON type, and intersect them.

A child (an item, a property's value) is a tuple of places of schemas that hold together; () allows any value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from whet.errors import RequestError

Child = tuple[int, ...]  # the places of the schemas that a value must match, sorted
MOST_FORMS = 2_000  # alternatives of one value
_MOST_WORK = 200_000  # intersections in one schema: about a second


class SchemaRefused(RequestError):
    """A schema cannot be enforced. The message says which part, in the words of JSON Schema."""


@dataclass(frozen=True)
class Constant:
    """Stand for null, true or false."""

    text: str


@dataclass(frozen=True)
class Number:
    """Describe numbers between two bounds. None stands for no bound."""

    low: Fraction | None = None
    high: Fraction | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    is_integer: bool = False
    multiple: Fraction | None = None


@dataclass(frozen=True)
class Text:
    """Describe texts of `least` to `most` characters (None for no bound) that match all patterns and formats.

    Attributes:
        patterns: Regular expressions that must match somewhere in a text.
        formats: Names of formats that llguidance knows.
        values: The only texts that are allowed; None for all.
        others: Texts that are not allowed.
    """

    least: int = 0
    most: int | None = None
    patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    values: tuple[str, ...] | None = None
    others: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Array:
    """Describe lists of `least` to `most` items (None for no bound): items by their place, then any number of others.

    `others` is None where there are no items beyond `first`.
    """

    least: int = 0
    most: int | None = None
    first: tuple[Child, ...] = ()
    others: Child | None = ()
    is_unique: bool = False

    def item(self, place: int) -> Child | None:
        """Return the schemas of the item at a place; None where there can be none."""
        return self.first[place] if place < len(self.first) else self.others


@dataclass(frozen=True)
class Object:
    """Describe objects of `least` to `most` properties (None for no bound): by names, by patterns of names, and others.

    Attributes:
        named: The schemas of properties by name; None where the name is not allowed.
        patterns: The schemas of properties whose name matches a pattern, and none of `named`.
        others: The schemas of all other properties; None for none.
        names: What the names of all properties must match.
    """

    least: int = 0
    most: int | None = None
    named: dict[str, Child | None] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    patterns: tuple[tuple[str, Child | None], ...] = ()
    others: Child | None = ()
    names: tuple[Text, ...] = ()


Form = Constant | Number | Text | Array | Object
ANY: tuple[Form, ...] = (
    Constant("null"),
    Constant("true"),
    Constant("false"),
    Number(),
    Text(),
    Array(),
    Object(),
)
KINDS = ("null", "boolean", "boolean", "number", "string", "array", "object")  # the types of JSON of those in ANY


class Intersecting:
    """Compute what forms share, and give up after too much work. `matches` returns whether a pattern matches a name."""

    def __init__(self, matches: Callable[[str, str], bool]) -> None:
        self._matches = matches
        self._num_done = 0

    def all(self, some: Sequence[Form], others: Sequence[Form]) -> tuple[Form, ...]:
        """Return the alternatives of what both allow.

        Raises:
            SchemaRefused: There are too many.
        """
        self._num_done += len(some) * len(others)
        if self._num_done > _MOST_WORK:
            raise SchemaRefused("its alternatives (anyOf, oneOf, if) combine in too many ways: write a smaller schema")
        found = dict[Form | int, Form]()
        for one in some:
            for other in others:
                both = self.both(one, other)
                if both is not None:
                    found[id(both) if isinstance(both, Object) else both] = both
        if len(found) > MOST_FORMS:
            raise SchemaRefused(
                f"the members of its anyOf and oneOf that hold together can be combined in {len(found)} ways, and "
                f"{MOST_FORMS} is the most: put fewer of them in allOf"
            )
        return tuple(found.values())

    def both(self, one: Form, other: Form) -> Form | None:
        """Return the form of what two forms allow; None where that is nothing."""
        if isinstance(one, Constant) and one == other:
            return one
        if isinstance(one, Number) and isinstance(other, Number):
            return _number(one, other)
        if isinstance(one, Text) and isinstance(other, Text):
            return text(one, other)
        if isinstance(one, Array) and isinstance(other, Array):
            return _array(one, other)
        if isinstance(one, Object) and isinstance(other, Object):
            return self._object(one, other)
        return None

    def _object(self, one: Object, other: Object) -> Object | None:
        named = {
            name: together(self.property(one, name), self.property(other, name))
            for name in dict.fromkeys([*one.named, *other.named])
        }
        patterns, others = one.patterns or other.patterns, together(one.others, other.others)
        if one.patterns and other.patterns:
            if [pattern for pattern, _ in one.patterns] != [pattern for pattern, _ in other.patterns]:
                raise SchemaRefused("different patternProperties hold together: join them in one schema")
            pairs = zip(one.patterns, other.patterns, strict=True)
            patterns = tuple((pattern, together(child, same)) for (pattern, child), (_, same) in pairs)
        elif patterns:
            beside = other.others if one.patterns else one.others
            patterns = tuple((pattern, together(child, beside)) for pattern, child in patterns)
        required = one.required | other.required
        least, most = max(one.least, other.least), _smaller(one.most, other.most)
        if most is not None and max(least, len(required)) > most:
            return None
        if any(name in named and named[name] is None for name in required):
            return None
        return Object(least, most, named, required, patterns, others, one.names + other.names)

    def property(self, one: Object, name: str) -> Child | None:
        """Return the schemas of the property of a name; None where it is not allowed."""
        if name in one.named:
            return one.named[name]
        found = [child for pattern, child in one.patterns if self._matches(pattern, name)]
        if not found:
            return one.others
        child: Child | None = ()
        for more in found:
            child = together(child, more)
        return child


def together(one: Child | None, other: Child | None) -> Child | None:
    """Return the schemas of a value that must match both; None where none can."""
    return None if one is None or other is None else tuple(sorted({*one, *other}))


def _smaller(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _number(one: Number, other: Number) -> Number | None:
    low, is_low_open = one.low, one.is_low_open
    if other.low is not None and (low is None or (other.low, other.is_low_open) > (low, is_low_open)):
        low, is_low_open = other.low, other.is_low_open
    high, is_high_open = one.high, one.is_high_open
    if other.high is not None and (high is None or (other.high, not other.is_high_open) < (high, not is_high_open)):
        high, is_high_open = other.high, other.is_high_open
    multiple = one.multiple if other.multiple is None else other.multiple
    if one.multiple is not None and other.multiple is not None:
        multiple = Fraction(
            math.lcm(
                one.multiple.numerator * other.multiple.denominator, other.multiple.numerator * one.multiple.denominator
            ),
            one.multiple.denominator * other.multiple.denominator,
        )
    number = Number(low, high, is_low_open, is_high_open, one.is_integer or other.is_integer, multiple)
    return None if is_empty(number) else number


def is_empty(number: Number) -> bool:
    """Return whether no number lies between the bounds."""
    if number.low is None or number.high is None:
        return False
    if number.is_integer:
        low, high = integers(number)
        return low is not None and high is not None and low > high
    return number.low > number.high or (number.low == number.high and (number.is_low_open or number.is_high_open))


def integers(number: Number) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer between the bounds; None for no bound."""
    low = high = None
    if number.low is not None:
        low = math.floor(number.low) + 1 if number.is_low_open else math.ceil(number.low)
    if number.high is not None:
        high = math.ceil(number.high) - 1 if number.is_high_open else math.floor(number.high)
    return low, high


def text(one: Text, other: Text) -> Text | None:
    """Return the texts that both allow; None where there are none."""
    least, most = max(one.least, other.least), _smaller(one.most, other.most)
    if most is not None and least > most:
        return None
    refused = one.others | other.others
    values = one.values if other.values is None else other.values
    if values is not None:
        allowed = None if one.values is None or other.values is None else frozenset(one.values)
        values = tuple(
            value
            for value in values
            if value not in refused
            and least <= len(value) <= (len(value) if most is None else most)
            and (allowed is None or value in allowed)
        )
        if not values:
            return None
        refused = frozenset()
    return Text(least, most, one.patterns | other.patterns, one.formats | other.formats, values, refused)


def _array(one: Array, other: Array) -> Array | None:
    least, most = max(one.least, other.least), _smaller(one.most, other.most)
    first = list[Child]()
    for place in range(max(len(one.first), len(other.first))):
        item = together(one.item(place), other.item(place))
        if item is None:
            most = place if most is None else min(most, place)
            break
        first.append(item)
    if most is not None and least > most:
        return None
    others = together(one.others, other.others)
    return replace(Array(least, most, tuple(first), others), is_unique=one.is_unique or other.is_unique)
