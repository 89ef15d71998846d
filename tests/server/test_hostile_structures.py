"""Structures that would take seconds are refused by what is counted in them; smaller ones of their kind compile.

No test here measures time. The numbers at the limits were chosen by timing each family once.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from guided import TOKENIZER, VOCAB

from whet.errors import RequestError
from whet.server.expression_size import MOST_PLAIN, MOST_STARTS, expression_size
from whet.server.grammars import Grammars
from whet.server.output_constraint import OutputConstraint
from whet.server.schema_size import MOST_MULTIPLES, why_schema_expensive
from whet.server.structure_size import why_too_large

GRAMMARS = Grammars(TOKENIZER, VOCAB)


def schema(**keywords: Any) -> OutputConstraint:
    return OutputConstraint.json_schema(keywords)


def doubling(count: int) -> OutputConstraint:
    """Each definition holds the next one twice, so that the last one holds 2**count times."""
    links = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(count)}
    return schema(**{"$defs": {**links, f"a{count}": {"pattern": "^a"}}, "$ref": "#/$defs/a0"})


def alternatives(count: int) -> OutputConstraint:
    return schema(allOf=[{"anyOf": [{"required": [f"p{i}"]}, {"required": [f"q{i}"]}]} for i in range(count)])


# For each family: how to make one of a size, a size that compiles, one that is refused, and what the refusal names.
FAMILIES: dict[str, tuple[Callable[[int], OutputConstraint], int, int, str]] = {
    "optional alternations": (lambda n: OutputConstraint.regex("(a|b)?" * n), 100, 30_000, "optional parts"),
    "optional sets": (lambda n: OutputConstraint.regex(r"\w?" * n), 100, 30_000, "optional parts"),
    "stars in a row": (lambda n: OutputConstraint.regex("a*" * n), 100, 30_000, "optional parts"),
    "empty alternatives": (lambda n: OutputConstraint.regex("(a|)" * n), 100, 30_000, "optional parts"),
    "counted from none": (lambda n: OutputConstraint.regex("a{0,3}" * n), 100, 30_000, "optional parts"),
    "optional in a star": (lambda n: OutputConstraint.regex("((a?)*" + "b*" * n + ")*"), 100, 30_000, "optional parts"),
    "a pattern of a schema": (lambda n: schema(pattern="(a|b)?" * n), 100, 30_000, "optional parts"),
    "a name's pattern": (lambda n: schema(patternProperties={"^" + "a?" * n: {}}), 100, 30_000, "optional parts"),
    "in a Lark grammar": (lambda n: OutputConstraint.grammar(f"start: /{'a?' * n}/"), 100, 30_000, "optional parts"),
    "a schema in Lark": (
        lambda n: OutputConstraint.grammar(f"start: %json {json.dumps({'type': 'string', 'pattern': 'a?' * n})}"),
        100,
        30_000,
        "optional parts",
    ),
    "a Lark terminal": (
        lambda n: OutputConstraint.grammar("start: A\nA: " + '"a"? ' * n),
        100,
        5_000,
        "optional parts",
    ),
    "a Lark rule": (lambda n: OutputConstraint.grammar("start: " + '"a"? ' * n), 100, 30_000, "30000 parts"),
    "a GBNF rule": (lambda n: OutputConstraint.grammar("root ::= " + "[a-z]? " * n), 100, 30_000, "30000 parts"),
    "plain text": (lambda n: OutputConstraint.regex("ab" * n), 1_000, 100_000, "200000 bytes of fixed text"),
    "a long choice": (lambda n: OutputConstraint.choice(["x", "ab" * n]), 1_000, 100_000, "200000 bytes of fixed text"),
    "a long constant": (lambda n: schema(const={"a": ["ab" * n]}), 1_000, 100_000, "200000 bytes of fixed text"),
    "a long text in GBNF": (
        lambda n: OutputConstraint.grammar(f'root ::= "{"a" * n}"'),
        1_000,
        100_000,
        "100000 bytes",
    ),
    "texts in a terminal": (lambda n: OutputConstraint.grammar("start: A\nA: " + '"a" ' * n), 500, 9_000, "9000 bytes"),
    "optional properties": (
        lambda n: schema(type="object", properties={f"p{i}": {"type": "null"} for i in range(n)}),
        100,
        4_000,
        "4000 optional properties",
    ),
    "patternProperties": (
        lambda n: schema(type="object", patternProperties={f"^p{i}_[a-z]+$": {} for i in range(n)}),
        20,
        4_000,
        "4000 patterns",
    ),
    "patterns in allOf": (
        lambda n: schema(type="string", allOf=[{"pattern": f"a{i}"} for i in range(n)]),
        4,
        40,
        "40 patterns",
    ),
    "patterns of one property": (
        lambda n: schema(type="object", allOf=[{"properties": {"x": {"pattern": f"a{i}"}}} for i in range(n)]),
        4,
        40,
        "40 patterns",
    ),
    "doubling references": (doubling, 2, 30, "more than 999999999 patterns"),
    "combinations": (alternatives, 5, 12, "4096 ways"),
    "intersections in Lark": (
        lambda n: OutputConstraint.grammar("start: A\nA: " + " & ".join(f"/.*{i}.*/" for i in range(n))),
        5,
        400,
        "399 signs &",
    ),
    "multiples": (
        lambda n: schema(type="array", prefixItems=[{"type": "integer", "multipleOf": 9_000 + i} for i in range(n)]),
        2,
        300,
        f"{MOST_MULTIPLES} is the most",
    ),
    "objects in anyOf": (
        lambda n: schema(anyOf=[{"type": "object", "properties": {f"p{i}": {}}} for i in range(n)]),
        200,
        5_000,
        "5000 members",
    ),
    "objects in enum": (lambda n: schema(enum=[{"a": i} for i in range(n)]), 1_000, 9_000, "9000 lists and objects"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hostile_structure_is_refused_and_a_small_one_compiles(family: str) -> None:
    make, small, large, named = FAMILIES[family]
    why = why_too_large(make(large))
    assert why is not None
    assert named in why
    assert "the most" in why
    GRAMMARS.guide(make(small))


@pytest.mark.parametrize(
    "structure",
    [
        OutputConstraint.regex("a{0,10000}"),
        OutputConstraint.regex("((a{0,10000}){0,10000}b?){0,10000}"),
        OutputConstraint.regex("((((a?)*)*)*)*"),
        OutputConstraint.regex("|".join(f"item {i}" for i in range(10_000))),
        OutputConstraint.regex("[ab]c" * 10_000),
        OutputConstraint.grammar('root ::= ("a" | "b"){0,10000}'),
        schema(enum=[f"item {i}" for i in range(10_000)]),
        schema(anyOf=[{"const": f"item {i}"} for i in range(4_000)]),
        schema(
            **{"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"},
        ),
        schema(type="array", minItems=10_000, items={"type": "array", "maxItems": 10_000}),
    ],
    ids=lambda structure: structure.text[:20],
)
def test_what_is_large_but_cheap_compiles(structure: OutputConstraint) -> None:
    assert not GRAMMARS.guide(structure).has_failed()


def test_20_000_choices_can_be_taken_to_the_end() -> None:
    choices = [f"{number:x}" for number in range(20_000)]
    generator, guide = np.random.default_rng(0), GRAMMARS.guide(OutputConstraint.choice(choices))
    for choice in ("0", "4e1f", "1a"):
        ids, at = TOKENIZER.encode(choice, False), guide.copy()
        assert at.num_valid(ids) == len(ids)
        assert at.matcher.consume_tokens(ids)
        assert at.matcher.is_accepting()
    output, is_complete = list[int](), False
    while not is_complete and len(output) < 8:
        bits = np.unpackbits(np.frombuffer(guide.matcher.compute_bitmask(), np.uint8), bitorder="little")
        token_id = int(generator.choice(np.flatnonzero(bits[: VOCAB + 1])))
        if token_id == VOCAB:
            break
        output.append(token_id)
        is_complete = guide.consume(token_id)
    assert b"".join(TOKENIZER.token_bytes(token_id) for token_id in output).decode() in set(choices)


@pytest.mark.parametrize(
    ("expression", "starts", "plain"),
    [
        ("a?b?c?", 6, 0),
        ("(a|b)?(a|b)?", 6, 1),
        ("(?:a|)(?P<x>a|)", 3, 1),
        ("a{0,5}a{2}a{1}", 2, 1),
        ("(a?b?)*c", 6, 1),
        ("((ab)(cd))x", 0, 5),
        ("abc|abcd", 0, 4),
        ("[]a?]b[^]c?[d]]", 0, 1),
        (r"\p{L}?\w\d\.", 2, 1),
        (r"^é\x41$", 0, 3),
        ("(?x) a? a? # b?", 3, 0),
        ("(a", 0, 1),
        ("a)[", 0, 2),
        ("", 0, 0),
        ("\\", 0, 1),
    ],
)
def test_what_is_counted_in_an_expression(expression: str, starts: int, plain: int) -> None:
    size = expression_size(expression)
    assert (size.starts, size.plain) == (starts, plain)


def test_the_limits_are_where_they_say() -> None:
    assert why_too_large(OutputConstraint.regex("a" * MOST_PLAIN)) is None
    assert why_too_large(OutputConstraint.regex("a" * (MOST_PLAIN + 1))) is not None
    longest = int((2 * MOST_STARTS) ** 0.5) - 1
    assert why_too_large(OutputConstraint.regex("a?" * longest)) is None
    assert why_too_large(OutputConstraint.regex("a?" * (longest + 2))) is not None


def test_a_refusal_says_what_to_do() -> None:
    with pytest.raises(RequestError, match=r"optional parts follow.*is the most.*write a counted repeat") as refused:
        GRAMMARS.guide(OutputConstraint.regex("(a|b)?" * 30_000))
    assert refused.value.param == "structure"


def test_apart_is_not_together() -> None:
    patterns = [{"pattern": f"a{i}"} for i in range(40)]
    assert why_schema_expensive({"anyOf": patterns}) is None
    assert why_schema_expensive({"properties": {f"p{i}": one for i, one in enumerate(patterns)}}) is None
    assert why_schema_expensive({"allOf": [{"properties": {f"p{i}": one}} for i, one in enumerate(patterns)]}) is None
    assert why_schema_expensive({"multipleOf": 0.0001}) is None
    assert why_schema_expensive({"multipleOf": True}) is None
    assert why_schema_expensive({"properties": {"pattern": {"type": "string"}}, "enum": 5, "allOf": "x"}) is None
