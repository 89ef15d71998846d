"""Draw JSON schemas of every kind, and texts that a grammar allows, for tests of structured output."""

import json
import math
from random import Random
from typing import Any

import jsonschema
import numpy as np

from whet.server.grammars import Grammars, Guide
from whet.server.output_constraint import OutputConstraint

_ENDS = np.isin(np.arange(257), [*b'"}],:', 256])
_MOST_BYTES = 400
_EDGES = (0, 1, 2**31, 2**53, 2**63, 2**64, 10**18)
_NAMES = ("a", "b", "kind", 'q"', "é", "x-1", "a\n")
_PATTERNS = ("^[a-c]{1,3}$", "b", "^x-", r"^\d+\.\d$", "^(a|bc)+$", "[^a]")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "path", "int64", "regexp")


class SingleBytes:
    """A vocabulary of single bytes."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(text.encode())


def byte_grammars() -> Grammars:
    return Grammars(SingleBytes(), 256)  # type: ignore[arg-type]


def allows(grammars: Grammars, schema: Any, value: str) -> bool:
    """Whether the grammar of a schema allows a whole text."""
    guide, ids = grammars.guide(OutputConstraint.json_schema(schema)), list(value.encode())
    return guide.num_valid(ids) == len(ids) and guide.matcher.consume_tokens(ids) and guide.matcher.is_accepting()


def drawn_text(guide: Guide, random: Random, most_bytes: int = _MOST_BYTES) -> str | None:
    """A text that a grammar allows; None where it became too long."""
    output = bytearray()
    while len(output) < most_bytes:
        bits = np.unpackbits(np.frombuffer(guide.matcher.compute_bitmask(), np.uint8), bitorder="little")[:257]
        ends = np.flatnonzero(bits & _ENDS)
        allowed = ends if len(ends) and random.random() < 0.6 else np.flatnonzero(bits)
        assert len(allowed), f"nothing can follow {bytes(output)!r}"
        token_id = int(allowed[random.randrange(len(allowed))])
        if token_id == 256:
            return output.decode()
        output.append(token_id)
        if guide.consume(token_id):
            return output.decode()
    return None


def check_valid(text: str, schema: Any) -> None:
    """Raise where a text is not valid by a schema, or a number in it is one that no double holds."""
    value = json.loads(text, parse_float=_finite, parse_int=_finite_integer)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)


def _finite(text: str) -> float:
    assert math.isfinite(float(text)), text
    return float(text)


def _finite_integer(text: str) -> int:
    assert math.isfinite(float(text)), text
    return int(text)


def drawn_schema(random: Random, depth: int = 3) -> Any:
    """A schema of any kind. Many allow nothing, and some cannot be enforced."""
    if random.random() < 0.03:
        return random.choice([True, {}, False])
    draw = random.choice(_LEAVES if depth == 0 or random.random() < 0.35 else _BRANCHES)
    schema = draw(random, depth - 1)
    if random.random() < 0.1:
        schema |= {"title": "T", "default": 1, "deprecated": True, "uniqueItems": False}
    return schema


def edge(random: Random) -> int:
    """A number near an edge of an integer type, or a small one."""
    return random.choice([1, -1]) * random.choice(_EDGES) + random.randint(-110, 110)


def _number(random: Random, depth: int) -> dict[str, Any]:
    low, high = sorted([edge(random), edge(random)])
    schema: dict[str, Any] = {"type": random.choice(["integer", "integer", "number"])}
    keys = [("minimum", low), ("maximum", high), ("exclusiveMinimum", low), ("exclusiveMaximum", high)]
    for key, value in random.sample(keys, random.randint(0, 3)):
        schema[key] = value if schema["type"] == "integer" or random.random() < 0.5 else value / 4
    if random.random() < 0.15:
        schema["multipleOf"] = random.choice([2, 5, 7])
    return schema


def _text(random: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if random.random() < 0.4:
        schema["pattern"] = random.choice(_PATTERNS)
    if random.random() < 0.3:
        schema["format"] = random.choice(_FORMATS)
    if random.random() < 0.3:
        schema["minLength"] = random.randint(0, 3)
    if random.random() < 0.3:
        schema["maxLength"] = random.randint(2, 9)
    return schema


def _value(random: Random) -> Any:
    values: list[Any] = [None, True, False, edge(random), random.random(), random.choice(_NAMES), "\u0001\x7f"]
    return random.choice([*values, [random.choice(values)], {random.choice(_NAMES): random.choice(values)}])


def _constants(random: Random, depth: int) -> dict[str, Any]:
    if random.random() < 0.4:
        return {"const": _value(random)}
    return {"enum": [_value(random) for _ in range(random.randint(1, 4))]}


def _array(random: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": drawn_schema(random, depth)}
    if random.random() < 0.3:
        schema["minItems"] = random.randint(0, 2)
    if random.random() < 0.4:
        schema["maxItems"] = random.randint(1, 4)
    if random.random() < 0.4:
        schema["uniqueItems"] = True
    if random.random() < 0.2:
        schema["prefixItems"] = [drawn_schema(random, depth) for _ in range(random.randint(1, 2))]
    return schema


def _object(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(_NAMES, random.randint(0, 3))
    schema: dict[str, Any] = {"properties": {name: drawn_schema(random, depth) for name in names}}
    if random.random() < 0.8:
        schema["type"] = "object"
    if random.random() < 0.5:
        schema["required"] = random.sample(_NAMES, random.randint(0, 2))
    if random.random() < 0.5:
        schema["additionalProperties"] = random.choice([False, drawn_schema(random, 0)])
    if random.random() < 0.15:
        schema["minProperties"] = random.randint(0, 2)
    if random.random() < 0.15:
        schema["maxProperties"] = random.randint(1, 4)
    if random.random() < 0.15:
        schema["patternProperties"] = {random.choice(_PATTERNS): drawn_schema(random, 0) for _ in range(2)}
    if random.random() < 0.1:
        schema["propertyNames"] = random.choice([{"pattern": "^[a-z]"}, {"enum": ["a", "b"]}, {"maxLength": 3}])
    if random.random() < 0.1:
        schema["dependentRequired"] = {"a": ["b"]}
    return schema


def _several(random: Random, depth: int) -> dict[str, Any]:
    key = random.choice(["anyOf", "anyOf", "allOf", "oneOf"])
    return {key: [drawn_schema(random, depth) for _ in range(random.randint(1, 3))]}


def _conditional(random: Random, depth: int) -> dict[str, Any]:
    schema = _object(random, depth)
    if random.random() < 0.4:
        return schema | {"not": random.choice([_constants, _number, _object])(random, 0)}
    schema |= {"if": random.choice([_constants, _object])(random, 0), "then": drawn_schema(random, 0)}
    return schema | random.choice([{}, {"else": drawn_schema(random, 0)}])


def _recursive(random: Random, depth: int) -> dict[str, Any]:
    inner = {"type": "object", "properties": {"v": drawn_schema(random, 0), "next": {"$ref": "#/$defs/n~1m"}}}
    return {"$defs": {"n/m": inner}, "anyOf": [{"$ref": "#/$defs/n~1m"}, drawn_schema(random, 0)]}


_LEAVES = [_number, _text, _constants]
_BRANCHES = [_array, _object, _object, _several, _conditional]


def drawn_root(random: Random) -> Any:
    """A schema that may refer to itself."""
    return _recursive(random, 1) if random.random() < 0.1 else drawn_schema(random)
