"""JSON schemas of everyday and at the edges: what their grammars allow, and in which words others are refused."""

import json
import re
import uuid
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Literal

import pydantic
import pytest
from schema_drawing import allows, byte_grammars, check_valid, drawn_root, drawn_text

from whet.errors import RequestError
from whet.server.output_constraint import OutputConstraint
from whet.server.schemas.forms import Number
from whet.server.schemas.numbers import integer_range
from whet.server.schemas.patterns import whole

GRAMMARS = byte_grammars()
LOW, HIGH = -(2**63), 2**63 - 1


def obj(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


KIND_A, KIND_B = obj(["k"], k={"const": "a"}), obj(["k", "x"], k={"const": "b"}, x={"type": "integer"})
LIST = obj(["next"], next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
CASES: dict[str, tuple[Any, list[str], list[str]]] = {  # a schema, texts that it allows, and others
    "int64": ({"type": "integer", "minimum": LOW, "maximum": HIGH}, [f"{LOW}", f"{HIGH}", "0"], [f"{LOW - 1}"]),
    "near the lowest": ({"type": "integer", "minimum": LOW, "maximum": LOW + 1}, [f"{LOW + 1}"], [f"{LOW + 2}"]),
    "exclusive": (
        {"type": "integer", "exclusiveMinimum": 2**53, "exclusiveMaximum": 2**53 + 2},
        [f"{2**53 + 1}"],
        [f"{2**53}"],
    ),
    "large enum": ({"enum": [1234567890123456789]}, ["1234567890123456789"], ["1234567890123456788"]),
    "large const": ({"const": 12345678901234567890123}, ["12345678901234567890123"], ["12345678901234567890124"]),
    "number": ({"type": "number"}, ["1e5", "-0.25", "1E+12", "0"], ["1e999", "01", "1" * 400]),
    "any": ({}, ['{"a": [1, {}]}', "1e5", '"x\\n"'], ["1e999", '{"\\u0061": 1}']),
    "half-open": (
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        ["0", "0.5"],
        ["1", "1.0", "-1", "0.99999999999999999999"],
    ),
    "names once": (
        {"properties": {"a": {"type": "integer"}}},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1, "a": "x"}', '{"\\u0061": "x"}'],
    ),
    "dates": (
        {"format": "date", "type": "string"},
        ['"2024-02-29"', '"2000-02-29"'],
        ['"2023-02-29"', '"1900-02-29"', '"0000-01-01"'],
    ),
    "times": (
        {"format": "date-time", "type": "string"},
        ['"2024-02-29T23:59:59Z"'],
        ['"2024-02-29T23:59:60Z"', '"2023-02-29T00:00:00Z"'],
    ),
    "one or the other": (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": 1}'],
        ["{}", '{"a": 1, "b": 2}'],
    ),
    "tagged": ({"oneOf": [KIND_A, KIND_B]}, ['{"k": "a"}', '{"k": "b", "x": 1}'], ['{"k": "b"}', '{"k": "c"}']),
    "if": (
        {
            **obj(["k"], k={"enum": ["a", "b"]}, x={}),
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"required": ["x"]},
        },
        ['{"k": "b"}', '{"k": "a", "x": 1}'],
        ['{"k": "a"}'],
    ),
    "not": ({"type": "string", "not": {"enum": ["a", ""]}}, ['"b"', '"aa"'], ['"a"', '""']),
    "not a number": ({"type": "integer", "not": {"const": 5}}, ["4", "55"], ["5"]),
    "set of constants": (
        {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": ["a", 3, None]}},
        ['["a", 3]', '[null, "a"]'],
        ['["a"]', '["a", "a"]'],
    ),
    "set of integers": (
        {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
        ["[1, 2, 3]", "[]", "[-1, 1]"],
        ["[1, 1]", "[1, 1.0]"],
    ),
    "set of few": (
        {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0, "maximum": 99}},
        ["[7, 12]"],
        ["[7, 7]"],
    ),
    "set of texts": (
        {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        ['["red", "green"]'],
        ['["a", "a"]'],
    ),
    "different objects": (
        {"type": "array", "uniqueItems": True, "items": obj(["id"], id={"type": "string"}, n={"type": "integer"})},
        ['[{"id": "a", "n": 1}, {"id": "b", "n": 1}]'],
        ['[{"id": "a", "n": 1}, {"id": "a", "n": 1}]'],
    ),
    "not unique": ({"type": "array", "uniqueItems": False, "items": {"type": "integer"}}, ["[1, 1]"], []),
    "names by pattern": (
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}},
        ['{"x-1": 2, "b": []}'],
        ['{"x-1": "a"}'],
    ),
    "both patterns": (
        {"properties": {"xy": {}}, "patternProperties": {"x": {"minimum": 1}, "y": {"maximum": 3}}},
        ['{"xy": 2}'],
        ['{"xy": 4}', '{"xy": 0}'],
    ),
    "named and matched": (
        {"properties": {"xa": {"type": "string"}}, "patternProperties": {"^x": {"maxLength": 1}}},
        ['{"xa": "a"}'],
        ['{"xa": "ab"}'],
    ),
    "names from a list": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
        ['{"b": 2}'],
        ['{"c": 1}'],
    ),
    "names like": (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}},
        ['{"abc": 1}'],
        ['{"A": 1}', '{"abcd": 1}'],
    ),
    "at least one": ({**obj(a={}, b={}), "minProperties": 1}, ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'], ["{}"]),
    "two of three": (
        {**obj(a={}, b={}, c={}), "minProperties": 2, "maxProperties": 2},
        ['{"a": 1, "c": 1}'],
        ['{"a": 1}', '{"a": 1, "b": 1, "c": 1}'],
    ),
    "room for the required": (
        {**obj(["c"], a={}, b={}, c={}), "maxProperties": 2},
        ['{"a": 1, "c": 1}', '{"c": 1}'],
        ['{"a": 1, "b": 1', "{}"],
    ),
    "open, at least one": ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    "depends": (
        {**obj(a={}, b={}), "dependentRequired": {"a": ["b"]}},
        ['{"b": 1}', '{"a": 1, "b": 2}', "{}"],
        ['{"a": 1}'],
    ),
    "refers to itself": (LIST, ['{"next": {"next": null}}'], ['{"next": 1}', "{}"]),
    "escaped pointer": ({"$defs": {"a/b~%": {"type": "null"}}, "$ref": "#/$defs/a~1b~0%25"}, ["null"], ["1"]),
    "anchor": ({"$defs": {"x": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, ["null"], ["1"]),
    "all of": ({"allOf": [obj(["a"], a={"type": "integer"}), obj(a={"minimum": 3})]}, ['{"a": 3}'], ['{"a": 2}']),
    "unknown words": ({"type": "string", "format": "nope", "x-y": 1, "examples": [1]}, ['"anything"'], ["1"]),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False},
        ["[null, true]", "[]"],
        ["[true]", "[null, true, 1]"],
    ),
    "old tuple": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}], "additionalItems": False},
        ["[null]"],
        ["[null, 1]"],
    ),
    "characters": ({"type": "string", "minLength": 2, "maxLength": 3}, ['"é🙂"', '"a\\n"'], ['"a"', '"abcd"']),
    "control characters": ({"enum": ["\u0001", "\u007f", 'q"\\']}, ['"\\u0001"', '"\u007f"', '"q\\"\\\\"'], ['"q"']),
    "decimal": (
        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},  # as pydantic writes it
        ['"-1.50"', '"7"'],
        ['"."', '"+"', '"x"'],
    ),
    "few left": ({"enum": ["a", 1, None], "type": "string"}, ['"a"'], ["1", "null"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_schema_allows(case: str) -> None:
    schema, good, bad = CASES[case]
    assert {text: allows(GRAMMARS, schema, text) for text in good} == dict.fromkeys(good, True)
    assert {text: allows(GRAMMARS, schema, text) for text in bad} == dict.fromkeys(bad, False)
    for text in good:
        check_valid(text, schema)


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Everyday(pydantic.BaseModel):
    numbers: set[int]
    words: frozenset[str]
    colours: set[Colour]
    counts: dict[Literal["a", "b"], int]
    raw: bytes
    secret: pydantic.SecretStr
    where: Path
    what: re.Pattern[str]
    address: pydantic.IPvAnyAddress
    id: uuid.UUID
    pair: tuple[int, str]


def test_a_pydantic_model_of_everyday_types_reads_what_is_written() -> None:
    schema = Everyday.model_json_schema()
    schema["properties"]["what"]["const"] = "a+"  # whether a text is a regular expression, no grammar can say
    guide, random, num_read = GRAMMARS.guide(OutputConstraint.json_schema(schema, "")), Random(0), 0
    for _ in range(40):
        text = drawn_text(guide.copy(), random, most_bytes=2_000)
        if text is not None:
            Everyday.model_validate_json(text)
            num_read += 1
    assert num_read > 10


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems cannot be enforced for lists and objects"),
        ({"contains": {"const": 1}}, "contains cannot be enforced: list the items by prefixItems"),
        ({"type": "string", "not": {"pattern": "a"}}, "not with pattern cannot be enforced: write what is allowed"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "oneOf with pattern cannot be enforced"),
        ({"type": "object", "minProperties": 3}, "minProperties 3 counts names that are free"),
        ({"$ref": "http://example.com/x"}, "in another document: put it into this schema"),
        ({"$ref": "#/$defs/x"}, "points to nothing"),
        ({"type": "nope"}, "type 'nope' is none of null, boolean"),
        ({"required": True}, "required must be a list of names"),
        ({"minimum": "1"}, "minimum must be a finite number"),
        ({"multipleOf": 0}, "multipleOf must be more than 0"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value is valid by it"),
        ({"allOf": [{"const": 1}, {"const": 2}]}, "no value is valid by it"),
        ({"type": "string", "pattern": "^a{3}$", "maxLength": 2}, "no text matches its patterns, formats and lengths"),
        (
            {"properties": {"a": {"unevaluatedProperties": False}}},
            "unevaluatedProperties cannot be enforced: write additional",
        ),
        ({"properties": {"a": 5}}, "5 stands where a schema must stand"),
        ({"patternProperties": {"a(?=b)": {}}}, "look-around is not supported"),
        ({"const": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_others_are_refused_in_words_of_json_schema(schema: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        GRAMMARS.guide(OutputConstraint("json_schema", json.dumps(schema)))
    assert message in str(refused.value)
    assert refused.value.code == "invalid_structure"
    assert not re.search(r"coerce|lenient|\d \| |%json", str(refused.value))


def test_schemas_in_a_grammar_are_held_to_the_same() -> None:
    grammar = (
        'start: "%json {" a\na: %json {"enum": [1234567890123456789], "x-guidance": {"lenient": true}}  // %json {\n'
    )
    guide = GRAMMARS.guide(OutputConstraint.grammar(grammar))
    ids = list(b"%json {1234567890123456789")
    assert guide.num_valid(ids) == len(ids)
    assert guide.num_valid(list(b"%json {1234567890123456788")) == len(ids) - 1
    with pytest.raises(RequestError, match="what follows %json at character 7 is no JSON"):
        GRAMMARS.guide(OutputConstraint.grammar("start: %json {"))


def test_ranges_of_integers_are_exact() -> None:
    random = Random(3)
    for _ in range(300):
        low, high = sorted(random.randint(-1_200, 1_200) for _ in range(2))
        matches = re.compile(integer_range(low, high)).fullmatch
        for number in {
            low - 1,
            low,
            low + 1,
            high - 1,
            high,
            high + 1,
            0,
            *(random.randint(-1_500, 1_500) for _ in range(9)),
        }:
            assert (matches(str(number)) is not None) == (low <= number <= high), (low, high, number)
    assert not re.fullmatch(integer_range(None, None), "-0")
    assert Number().is_integer is False


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^x-", "x-1", "ax-"),
        ("b", "abc", "ac"),
        ("^a$|^b$", "b", "ab"),
        (r"^[\d/]+$", "1/2", "a"),
        ("^(a|b)c", "bcd", "abc"),
    ],
)
def test_a_pattern_matches_as_a_whole(pattern: str, inside: str, outside: str) -> None:
    found = re.compile(whole(pattern))
    assert found.fullmatch(inside)
    assert not found.fullmatch(outside)


def check_drawn(seed: int) -> bool:
    """Whether the schema of a seed is enforced. What its grammar allows is valid."""
    random = Random(seed)
    schema = drawn_root(random)
    try:
        guide = GRAMMARS.guide(OutputConstraint.json_schema(schema))
    except RequestError as error:
        assert "fails on it" not in str(error)
        assert "crashes" not in str(error)
        return False
    for _ in range(3):
        text = drawn_text(guide.copy(), random)
        if text is not None:
            check_valid(text, schema)
    return True


def test_drawn_schemas_are_enforced_or_refused() -> None:
    assert sum(check_drawn(seed) for seed in range(60)) > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_5000_drawn_schemas_are_enforced_or_refused() -> None:
    assert sum(check_drawn(seed) for seed in range(5_000)) > 3_000


def bounded(low: int, high: int) -> None:
    """Check the ends of a range of integers, by each way to say them."""
    for schema in (
        {"type": "integer", "minimum": low, "maximum": high},
        {"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1},
    ):
        for number in (low, high):
            assert allows(GRAMMARS, schema, str(number))
        for number in (low - 1, high + 1):
            assert not allows(GRAMMARS, schema, str(number))


@pytest.mark.parametrize("distance", [0, 1, 99, 1024])
def test_bounds_near_the_ends_of_int64(distance: int) -> None:
    bounded(LOW, LOW + distance)
    bounded(HIGH - distance, HIGH)


@pytest.mark.slow
def test_every_int64_bound_near_an_edge() -> None:
    for power in (31, 32, 53, 62, 63, 64):
        for distance in range(-130, 131):
            for sign in (1, -1):
                edge = sign * 2**power + distance
                bounded(edge, edge + abs(distance))
