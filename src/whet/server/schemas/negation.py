"""Find what a schema does not allow, as far as forms can say it: for `not`, `if` and overlapping members of `oneOf`.

What is found is never too much. A schema whose opposite cannot be said at all is refused.
"""

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, Protocol

from whet.server.schemas.forms import (
    ANY,
    KINDS,
    Array,
    Child,
    Constant,
    Form,
    Intersecting,
    Number,
    Object,
    SchemaRefused,
    Text,
)
from whet.server.schemas.keywords import NOT_ENFORCED, REFERENCES, TYPES, count, exact, members, names, subschemas

_DEEPEST = 30  # schemas within each other
_LEFT_OUT = frozenset(  # a value that differs in these alone is left out
    {"additionalProperties", "patternProperties", "items", "prefixItems", "additionalItems", "uniqueItems"}
)
_UNKNOWN = frozenset(
    {"pattern", "format", "multipleOf", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas"}
)


class Reads(Protocol):
    """Say what of a schema's reader is needed here; see reading.Reader."""

    meeting: Intersecting

    def child(self, schema: Any) -> Child | None: ...

    def of(self, schema: Any) -> tuple[Form, ...]: ...

    def target(self, reference: Any) -> Any: ...


def negated(reader: Reads, schema: Any, keyword: str, depth: int = 0) -> tuple[Form, ...]:
    """Return forms of values that a schema does not allow.

    `keyword` is what asks for it, for messages; `depth` counts the schemas around this one.

    Raises:
        SchemaRefused: The opposite cannot be enforced.
    """
    if depth > _DEEPEST:
        raise SchemaRefused(f"{keyword} with a schema that refers to itself cannot be enforced")
    if isinstance(schema, bool):
        return () if schema else ANY
    if not isinstance(schema, dict):
        reader.child(schema)  # raises
    for name in sorted(schema.keys() & (_UNKNOWN | NOT_ENFORCED.keys())):
        raise SchemaRefused(
            f"{keyword} with {name} cannot be enforced: write what is allowed (by enum, const, type, required or "
            f"bounds), or leave {keyword} out"
        )
    found = [
        *_types(schema),
        *_values(schema),
        *_numbers(schema),
        *_sizes(schema),
        *_properties(schema, reader),
        *_applicators(schema, reader, keyword, depth + 1),
    ]
    if not found and _LEFT_OUT & schema.keys():
        name = min(_LEFT_OUT & schema.keys())
        raise SchemaRefused(
            f"{keyword} with {name} alone cannot be enforced: add what tells the values apart, by const"
        )
    return tuple(found)


def _types(schema: Mapping[str, Any]) -> list[Form]:
    if "type" not in schema:
        return []
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if any(kind not in TYPES for kind in kinds):
        raise SchemaRefused(f"type {schema['type']!r} is none of {', '.join(TYPES)}")
    kinds = ["number" if kind == "integer" else kind for kind in kinds]
    return [form for form, kind in zip(ANY, KINDS, strict=True) if kind not in kinds]


def _values(schema: Mapping[str, Any]) -> list[Form]:
    found = list[Form]()
    for keyword in ("enum", "const"):
        if keyword not in schema:
            continue
        values = schema[keyword] if keyword == "enum" else [schema[keyword]]
        if not isinstance(values, list):
            raise SchemaRefused("enum must be a list of values")
        constants = {"null": None, "true": True, "false": False}
        found += [Constant(text) for text, one in constants.items() if not any(value is one for value in values)]
        found.append(Text(others=frozenset(value for value in values if isinstance(value, str))))
        found += _between(
            sorted(
                {exact(one, keyword) for one in values if isinstance(one, (int, float)) and not isinstance(one, bool)}
            )
        )
        if not any(isinstance(value, list) for value in values):
            found.append(Array())
        if not any(isinstance(value, dict) for value in values):
            found.append(Object())
    return found


def _between(numbers: list[Fraction]) -> list[Form]:
    """Return the numbers below, between and above some."""
    bounds = [None, *numbers, None]
    return [Number(low, high, low is not None, high is not None) for low, high in pairwise(bounds)]


def _numbers(schema: Mapping[str, Any]) -> list[Form]:
    found = list[Form]()
    for keyword, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        bounds = list[tuple[Fraction, bool]]()
        beyond = schema.get(exclusive)
        if schema.get(keyword) is not None:
            bounds.append((exact(schema[keyword], keyword), beyond is not True))
        if beyond is not None and not isinstance(beyond, bool):
            bounds.append((exact(beyond, exclusive), False))
        for bound, is_open in bounds:
            is_low = keyword == "minimum"
            found.append(Number(high=bound, is_high_open=is_open) if is_low else Number(low=bound, is_low_open=is_open))
    return found


def _sizes(schema: Mapping[str, Any]) -> list[Form]:
    found = list[Form]()
    for kind, what in ((Text, "Length"), (Array, "Items"), (Object, "Properties")):
        least, most = count(schema, f"min{what}"), count(schema, f"max{what}")
        if least:
            found.append(kind(most=least - 1))
        if most is not None:
            found.append(kind(least=most + 1))
    return found


def _properties(schema: Mapping[str, Any], reader: Reads) -> list[Form]:
    found: list[Form] = [Object(named={name: None}) for name in names(schema)]
    for name, one in subschemas(schema, "properties").items():
        if (other := reader.child({"not": one})) is not None and one not in (True, {}):
            found.append(Object(named={name: other}, required=frozenset({name})))
    return found


def _applicators(schema: Mapping[str, Any], reader: Reads, keyword: str, depth: int) -> list[Form]:
    def opposite(one: Any) -> tuple[Form, ...]:
        return negated(reader, one, keyword, depth)

    found = [form for one in members(schema, "allOf") for form in opposite(one)]
    found += [form for key in REFERENCES if key in schema for form in opposite(reader.target(schema[key]))]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            none = ANY
            for one in members(schema, key):
                none = reader.meeting.all(none, opposite(one))
            found += none
    if "not" in schema:
        found += reader.of(schema["not"])
    if "if" in schema:
        if "then" in schema:
            found += reader.meeting.all(reader.of(schema["if"]), opposite(schema["then"]))
        if "else" in schema:
            found += reader.meeting.all(opposite(schema["if"]), opposite(schema["else"]))
    return found
