"""Read the keywords of one JSON schema that say something about one type, as forms.

Sources: JSON Schema, drafts 4 to 2020-12; what pydantic writes.
"""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from whet.server.schemas.formats import BY_LLGUIDANCE, PATTERNS
from whet.server.schemas.forms import (
    Array,
    Child,
    Constant,
    Form,
    Number,
    Object,
    SchemaRefused,
    Text,
    is_empty,
    together,
)
from whet.server.schemas.patterns import matches

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
_MOST_COUNT = 100_000  # of minLength, maxItems and their kin, where they ask for something
NOT_ENFORCED = {
    "contains": "list the items by prefixItems, or give items an enum",
    "minContains": "list the items by prefixItems",
    "unevaluatedProperties": "write additionalProperties beside all properties in one schema",
    "unevaluatedItems": "write items beside prefixItems in one schema",
    "extends": "write allOf",
    "disallow": "write not",
    "divisibleBy": "write multipleOf",
}
REFERENCES = ("$ref", "$recursiveRef", "$dynamicRef")
_SOME_DIGIT = "^(?!^[-+.]*$)"  # how pydantic's pattern of a Decimal begins: there is more than signs and points

Children = Callable[[Any], Child | None]  # the schemas that a subschema stands for


def own_forms(schema: Mapping[str, Any], child: Children) -> tuple[Form, ...]:
    """Return what the keywords that concern one type allow: all but $ref, allOf, anyOf, enum and their kin.

    Raises:
        SchemaRefused: A keyword has a wrong value, or cannot be enforced.
    """
    for keyword, instead in NOT_ENFORCED.items():
        if keyword in schema and not (keyword.startswith("unevaluated") and schema[keyword] in (True, {})):
            raise SchemaRefused(f"{keyword} cannot be enforced: {instead}")
    types = schema.get("type", list(TYPES))
    found = list[Form]()
    for kind in types if isinstance(types, list) else [types]:
        if kind == "null":
            found.append(Constant("null"))
        elif kind == "boolean":
            found += [Constant("true"), Constant("false")]
        elif kind in ("number", "integer"):
            if not (kind == "integer" and "number" in types):
                number = _number(schema, is_integer=kind == "integer")
                found += [] if is_empty(number) else [number]
        elif kind == "string":
            found += _texts(schema)
        elif kind == "array":
            found += _arrays(schema, child)
        elif kind == "object":
            found.append(_object(schema, child))
        else:
            raise SchemaRefused(f"type {kind!r} is none of {', '.join(TYPES)}")
    return tuple(found)


def exact(value: Any, keyword: str) -> Fraction:
    """Return a number of a schema as it is written.

    Raises:
        SchemaRefused: It is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SchemaRefused(f"{keyword} must be a finite number")
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def count(schema: Mapping[str, Any], keyword: str) -> int | None:
    """Return a count such as minLength; None where the schema has none.

    Raises:
        SchemaRefused: It is no count.
    """
    value = schema.get(keyword)
    if value is None:
        return None
    number = exact(value, keyword)
    if number < 0 or number.denominator != 1:
        raise SchemaRefused(f"{keyword} must be an integer from 0 up")
    if number > _MOST_COUNT and keyword.startswith("min"):
        raise SchemaRefused(f"{keyword} is {number}, and {_MOST_COUNT} is the most")
    return int(number)


def subschemas(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    """Return the schemas of a keyword such as `properties` by name.

    Raises:
        SchemaRefused: It has no object.
    """
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        raise SchemaRefused(f"{keyword} must be an object of schemas")
    return value


def names(schema: Mapping[str, Any], keyword: str = "required") -> list[str]:
    """Return the names of a keyword such as `required`.

    Raises:
        SchemaRefused: It has no list of texts.
    """
    value = schema.get(keyword, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise SchemaRefused(f"{keyword} must be a list of names")
    return value


def _number(schema: Mapping[str, Any], *, is_integer: bool) -> Number:
    def bound(keyword: str, exclusive: str) -> tuple[Fraction | None, bool]:
        at = None if schema.get(keyword) is None else exact(schema[keyword], keyword)
        beyond = schema.get(exclusive)
        if beyond is None or beyond is False:
            return at, False
        if beyond is True:  # draft 4
            return at, True
        limit = exact(beyond, exclusive)
        if at is not None and (at > limit if keyword == "minimum" else at < limit):
            return at, False
        return limit, True

    low, is_low_open = bound("minimum", "exclusiveMinimum")
    high, is_high_open = bound("maximum", "exclusiveMaximum")
    multiple = None if schema.get("multipleOf") is None else exact(schema["multipleOf"], "multipleOf")
    if multiple is not None and multiple <= 0:
        raise SchemaRefused("multipleOf must be more than 0")
    return Number(low, high, is_low_open, is_high_open, is_integer, multiple)


def _texts(schema: Mapping[str, Any]) -> list[Form]:
    pattern, form = schema.get("pattern"), schema.get("format")
    if not isinstance(pattern, (str, type(None))):
        raise SchemaRefused("pattern must be a regular expression, as a text")
    least, most = count(schema, "minLength") or 0, count(schema, "maxLength")
    if most is not None and least > most:
        return []
    patterns = frozenset() if pattern is None else frozenset({pattern})
    if pattern is not None and pattern.startswith(_SOME_DIGIT):
        patterns = frozenset({f"^{pattern.removeprefix(_SOME_DIGIT)}", "[0-9]"})
    known = isinstance(form, str)
    if known and form in PATTERNS:
        return [Text(least, most, patterns | {PATTERNS[form]})]
    if known and form in BY_LLGUIDANCE:
        return [Text(least, most, patterns, frozenset({one})) for one in BY_LLGUIDANCE[form]]
    return [Text(least, most, patterns)]


def _arrays(schema: Mapping[str, Any], child: Children) -> list[Form]:
    items = schema.get("items", True)
    first, others = schema.get("prefixItems", []), items
    if isinstance(items, list):  # up to draft 2019-09
        first, others = items, schema.get("additionalItems", True)
    if not isinstance(first, list):
        raise SchemaRefused("prefixItems must be a list of schemas")
    least, most = count(schema, "minItems") or 0, count(schema, "maxItems")
    read = list[Child]()
    for one in first:
        item = child(one)
        if item is None:
            most = len(read) if most is None else min(most, len(read))
            break
        read.append(item)
    is_unique = schema.get("uniqueItems", False)
    if not isinstance(is_unique, bool):
        raise SchemaRefused("uniqueItems must be true or false")
    if most is not None and least > most:
        return []
    return [Array(least, most, tuple(read), child(others), is_unique)]


def _object(schema: Mapping[str, Any], child: Children) -> Object:
    named = {name: child(one) for name, one in subschemas(schema, "properties").items()}
    patterns = tuple((name, child(one)) for name, one in subschemas(schema, "patternProperties").items())
    for pattern, value in patterns:
        named |= {name: together(one, value) for name, one in named.items() if matches(pattern, name)}
    others = child(schema.get("additionalProperties", True))
    required = frozenset(names(schema))
    least, most = count(schema, "minProperties") or 0, count(schema, "maxProperties")
    return Object(least, most, named, required, patterns, others)


def members(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """Return the schemas of a keyword such as allOf.

    Raises:
        SchemaRefused: It has none.
    """
    value = schema.get(keyword, [])
    if not isinstance(value, list) or (keyword in schema and not value):
        raise SchemaRefused(f"{keyword} must be a list of at least one schema")
    return value
