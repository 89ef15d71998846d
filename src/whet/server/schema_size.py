"""Estimate what a JSON schema costs llguidance, so that an expensive one is refused before it is compiled.

Some costs grow faster than the schema: optional properties of an object (with the square), numbers in `multipleOf` (a
state for each remainder), patterns of property names (each pair is checked), patterns that one text must match
together, and `anyOf`s that hold together (each combination becomes a schema of its own).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

from whet.server.expression_size import why_expensive, why_too_plain

MOST_OPTIONAL = 1_000  # properties of one object; for several objects, the root of the sum of the squares
MOST_NAME_PATTERNS = 100  # of the property names of one schema
MOST_FORMATS = 1_000  # uses of `format` in one schema
MOST_MEMBERS = 1_000  # of anyOf and oneOf in one schema, without those that are constants
MOST_VALUES = 3_000  # lists and objects among the values of enum and const
MOST_MULTIPLES = 50_000  # the sum of the different values of multipleOf, without their decimal points
MOST_TOGETHER = 6  # patterns and formats of one text
MOST_COMBINED = 1_000  # combinations of the members of anyOf and oneOf

_FAR = 10**9  # where counting stops: references can make counts grow without bound
_INNER = "[]"  # the name of all values that have no name in the schema


class _Count(NamedTuple):
    """A count says what holds together for one value: so many patterns and formats, and so many alternatives.

    `combined` is how many of these alternatives are combinations of others, which hold together.
    """

    patterns: int = 0
    members: int = 1
    combined: int = 0


_Counts = Mapping[str, _Count]  # of the value itself (""), and of the properties in it by their names


def why_schema_expensive(schema: Any, others: Iterable[str] = ()) -> str | None:
    """Return why a JSON schema is not compiled, and what to do about it; None where it is.

    `others` are regular expressions that are compiled with it.
    """
    objects = [one for _, one in nested(schema) if isinstance(one, dict)]
    counts = [max(0, len(_object(one, "properties")) - len(_list(one, "required"))) for one in objects]
    optional = math.isqrt(sum(count**2 for count in counts))
    if optional > MOST_OPTIONAL:
        return f"it has {optional} optional properties, and {MOST_OPTIONAL} is the most: require some, or remove some"
    names = [name for one in objects for name in _object(one, "patternProperties")]
    if len(names) > MOST_NAME_PATTERNS:
        return f"patternProperties has {len(names)} patterns, and {MOST_NAME_PATTERNS} is the most: join some with |"
    patterns = [one["pattern"] for one in objects if isinstance(one.get("pattern"), str)]
    if (why := why_expensive([*patterns, *names, *others])) is not None:
        return why
    texts = [text for one in objects for key in ("enum", "const") for text in _texts(one.get(key))]
    if (why := why_too_plain(max((len(text.encode(errors="replace")) for text in texts), default=0))) is not None:
        return why
    if (why := _why_many(objects)) is not None:
        return why
    try:
        together = _Counter(schema).counts(schema).values()
    except RecursionError:
        return "its references ($ref) and levels nest too deeply: write a smaller schema"
    if (most := max((count.patterns for count in together), default=0)) > MOST_TOGETHER:
        many = f"more than {_FAR - 1}" if most == _FAR else most
        return f"one text must match {many} patterns and formats together, and {MOST_TOGETHER} is the most: join some"
    if (most := max((count.combined for count in together), default=0)) > MOST_COMBINED:
        many = f"more than {_FAR - 1}" if most == _FAR else most
        return (
            f"the members of its anyOf and oneOf that hold together can be combined in {many} ways, and "
            f"{MOST_COMBINED} is the most: put fewer of them in allOf"
        )
    return None


def _why_many(objects: Sequence[dict[str, Any]]) -> str | None:
    """Return which of the parts that are only counted are too many; None where none are."""
    formats = sum("format" in one for one in objects)
    if formats > MOST_FORMATS:
        return f"it has {formats} formats, and {MOST_FORMATS} is the most: write a smaller schema"
    members = [member for one in objects for key in ("anyOf", "oneOf") for member in _list(one, key)]
    others = sum(not (isinstance(one, dict) and ("const" in one or "enum" in one)) for one in members)
    if others > MOST_MEMBERS:
        return f"anyOf and oneOf have {others} members without const, and {MOST_MEMBERS} is the most: write fewer"
    values = sum(1 for one in objects for key in ("enum", "const") for _ in nested(one.get(key)))
    values -= sum(isinstance(one.get("enum"), list) for one in objects)
    if values > MOST_VALUES:
        return f"enum and const have {values} lists and objects, and {MOST_VALUES} is the most: shorten the lists"
    numbers = {one["multipleOf"] for one in objects if type(one.get("multipleOf")) in (int, float)}
    multiples = sum(_without_point(number) for number in numbers)
    if multiples > MOST_MULTIPLES:
        return (
            f"the values of multipleOf add up to {multiples} without their decimal points, and {MOST_MULTIPLES} is "
            f"the most: use smaller or fewer ones"
        )
    return None


def _without_point(number: float) -> int:
    """Return the decimal digits of 0.25 as 25, for example."""
    if not math.isfinite(number):
        return 0
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    zeros = max(0, int(exponent))
    return int("".join(map(str, digits)) + "0" * zeros)


def nested(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield each list and object of a JSON value with its level, from 1 on, without recursion."""
    level, inner = 1, [value]
    while inner := [one for one in inner if isinstance(one, (dict, list))]:
        for one in inner:
            yield level, one
        inner = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
        level += 1


class _Counter:
    """Counts what holds together in a schema. Each reference is followed once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._of_reference: dict[str, _Counts] = {}

    def counts(self, schema: Any) -> _Counts:
        """Return the counts of a schema.

        Raises:
            RecursionError: The schema nests too deeply.
        """
        if not isinstance(schema, dict):
            return {}
        own = _Count(("pattern" in schema) + ("format" in schema))
        together = [{"": own}, *(self.counts(one) for one in _list(schema, "allOf"))]
        if isinstance(reference := schema.get("$ref"), str):
            together.append(self._followed(reference))
        for key in ("anyOf", "oneOf"):
            if options := [self.counts(one) for one in _list(schema, key)]:
                each = [option.get("", _Count()) for option in options]
                members, combined = sum(one.members for one in each), sum(one.combined for one in each)
                together.append({**_apart(options), "": _Count(max(one.patterns for one in each), members, combined)})
        together.append(_apart(self._inner(schema)))
        return _together(together)

    def _inner(self, schema: dict[str, Any]) -> Iterator[_Counts]:
        """Yield the counts of the values inside those of a schema."""
        named = _object(schema, "properties")
        inner = [*_list(schema, "prefixItems"), *_object(schema, "patternProperties").values()]
        inner += [schema.get(key) for key in ("items", "additionalProperties")]
        for name, one in [*named.items(), *((_INNER, one) for one in inner)]:
            counts = dict(self.counts(one))
            own = counts.pop("", None)
            yield _apart([counts, {name: own}]) if own is not None else counts

    def _followed(self, reference: str) -> _Counts:
        if reference not in self._of_reference:
            self._of_reference[reference] = {}  # a cycle ends here
            self._of_reference[reference] = self.counts(self._target(reference))
        return self._of_reference[reference]

    def _target(self, reference: str) -> Any:
        """Return the schema that a reference within the text points to; None where there is none."""
        value = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            value = value.get(step) if isinstance(value, dict) else None
        return value


def _together(several: Iterable[_Counts]) -> _Counts:
    """Return the counts of schemas that hold together."""
    joined: dict[str, _Count] = {}
    for counts in several:
        for name, count in counts.items():
            other = joined.get(name, _Count())
            patterns, members = count.patterns + other.patterns, count.members * other.members
            combined = members if min(count.members, other.members) > 1 else max(count.combined, other.combined)
            joined[name] = _Count(min(patterns, _FAR), min(members, _FAR), min(combined, _FAR))
    return joined


def _apart(several: Iterable[_Counts]) -> _Counts:
    """Return the counts of schemas that never hold together: the larger ones."""
    joined: dict[str, _Count] = {}
    for counts in several:
        for name, count in counts.items():
            other = joined.get(name, _Count())
            joined[name] = _Count(*map(max, count, other))
    return joined


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for _, one in nested(value):
        for item in one.items() if isinstance(one, dict) else ((None, item) for item in one):
            yield from (text for text in item if isinstance(text, str))


def _object(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value := schema.get(key), dict) else {}


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    return value if isinstance(value := schema.get(key), list) else []
