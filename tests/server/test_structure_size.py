"""Structures that chain, nest or branch without bound: a refusal or a success, and never the end of the process."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import llguidance
import pytest
from driving import outputs
from guided import VOCAB, random_stepper, request
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import RequestError
from whet.server import compiling
from whet.server.output_constraint import OutputConstraint
from whet.server.structure_size import MOST_LINKS, num_levels, why_too_large


def definitions(count: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> OutputConstraint:
    chained = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(count - 1)}
    return OutputConstraint.json_schema(
        {"$defs": {**chained, f"a{count - 1}": {"type": "string"}}, "$ref": "#/$defs/a0"}
    )


def rules(count: int, name: str, is_: str, after: str = "") -> OutputConstraint:
    lines = [f"{name}{i}{is_} {name}{i + 1}{after}" for i in range(count - 1)]
    first = "root ::=" if "=" in is_ else "start:"
    return OutputConstraint.grammar("\n".join([f"{first} {name}0", *lines, f'{name}{count - 1}{is_} "x"']))


CHAINS: dict[str, Callable[[int], OutputConstraint]] = {
    "branches": lambda count: definitions(count, lambda link: {"anyOf": [link, {"type": "null"}]}),
    "references": lambda count: definitions(count, lambda link: link),
    "rules": lambda count: rules(count, "a", ":"),
    "terminals": lambda count: rules(count, "A", ":", ' "y"'),
    "gbnf": lambda count: rules(count, "a", " ::="),
    "brackets": lambda count: OutputConstraint.grammar("start: " + "(" * count + '"x"' + ")" * count),
}


def compile_in_turn(kind: str, counts: list[int], *, is_checked: bool) -> None:
    """Compile chains of these lengths, as a child does; this is run in a process of its own."""
    if not is_checked:
        setattr(compiling, "why_too_large", lambda structure: None)  # noqa: B010 - mypy knows no such export
    for count in counts:
        one = CHAINS[kind](count)
        message = {"kind": one.kind, "text": one.text, "whitespace": None, "size": VOCAB, "special": {}}
        print(compiling._answer(llguidance, message).get("error", "compiled"))


def compiled_apart(kind: str, counts: list[int], *, is_checked: bool) -> list[str]:
    code = f"from {__name__} import *; compile_in_turn({kind!r}, {counts}, is_checked={is_checked})"
    program = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-500:]}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", CHAINS)
def test_a_long_chain_is_refused_before_it_is_compiled(kind: str) -> None:
    said = compiled_apart(kind, [100, 500, 2_500, 12_000], is_checked=True)
    assert said[0] == "compiled" or kind == "brackets"
    assert all("is the most" in one for one in said[2:])
    assert len(said) == 4


@pytest.mark.parametrize("kind", ["branches", "references", "rules", "terminals", "gbnf"])
def test_what_is_misjudged_has_a_large_stack(kind: str) -> None:
    count = 2_500 if kind == "branches" else 4_000
    assert compiled_apart(kind, [count], is_checked=False) == ["compiled"]


def test_what_is_counted() -> None:
    many = "\n".join(f'  "key{i}": [1, {{"x": "a: b ::="}}],' for i in range(MOST_LINKS))
    for text in (
        'start: %json {"enum": [\n' + many[:-1].replace('  "key', '  {"key').replace("}],", "}]},") + "}]}",
        "start: " + '"a:b" '.join("" for _ in range(MOST_LINKS + 9)) + " # a: b\n",
        'root ::= [^:"]+ ' + "(" * 9 + '"x"' + ")" * 9,
    ):
        assert why_too_large(OutputConstraint.grammar(text)) is None
    schemas = "\n".join(f'a{i}: %json {{"$ref": "#", "x": {{"$ref": "#"}}}}' for i in range(MOST_LINKS // 2 + 1))
    assert "references" in (why_too_large(OutputConstraint.grammar(schemas)) or "")
    escaped = '{"anyOf": [' + ",".join(['{"\\u0024ref": "#"}'] * MOST_LINKS) + "]}"
    assert "references" in (why_too_large(OutputConstraint.json_schema(escaped)) or "")
    values: list[Any] = [1, [], {"a": []}, [[1], [[2]]]]
    assert [num_levels(value) for value in values] == [0, 1, 2, 3]


AMBIGUOUS = 'start: s\ns: s s | s s s | "a" | "b" | " " | /[a-z]/ | /[a-z]+/'


def test_a_grammar_that_is_too_ambiguous_ends_its_request_alone() -> None:
    ambiguous = request(OutputConstraint.grammar(AMBIGUOUS), max_tokens=120)
    other = request(OutputConstraint.regex("[ab]{40}"), max_tokens=60)
    found = outputs(random_stepper(), [ambiguous, other])
    assert found[0].finish_reason == "error"
    assert "too many alternatives can go on at one place" in (found[0].error or "")
    assert 0 < len(found[0].token_ids) < 60
    assert (found[1].finish_reason, len(found[1].text)) == ("stop", 40)


def test_a_token_that_exceeds_a_limit_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = request(OutputConstraint.regex("[ab]{9}")), request(OutputConstraint.regex("[ab]{9}"))
    assert one.guide is not None

    def consume(token_id: int) -> bool:
        raise RequestError("the structure cannot go on")

    monkeypatch.setattr(one.guide, "consume", consume)
    found = outputs(random_stepper(), [one, other])
    assert [done.finish_reason for done in found] == ["error", "stop"]
    assert found[0].error == "the structure cannot go on"


_KEYWORDS = st.sampled_from(
    [
        "type",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "properties",
        "required",
        "items",
        "prefixItems",
        "pattern",
        "format",
        "multipleOf",
        "patternProperties",
        "additionalProperties",
        "$ref",
        "$defs",
        "minItems",
        "maxItems",
    ]
)


def _nested_schemas(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children, max_size=4) | st.dictionaries(_KEYWORDS | st.text(max_size=2), children, max_size=4)


_PIECES = st.sampled_from(["root", "::=", ":", "start", "A", '"a"', "/b/", *"[](){}|?*&\\\n", "%json", "%regex"])


@given(text=st.lists(_PIECES | st.text(max_size=4), max_size=30).map("".join))
@settings(max_examples=200, deadline=None)
def test_any_text_is_judged_without_an_error(text: str) -> None:
    """Whether it is a structure at all is for the library to say."""
    for structure in (
        OutputConstraint.grammar(text),
        OutputConstraint.regex(text),
        OutputConstraint("json_schema", text),
    ):
        assert isinstance(why_too_large(structure), str | None)


@given(
    schema=st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), _nested_schemas, max_leaves=20)
)
@settings(max_examples=200, deadline=None)
def test_any_json_is_judged_without_an_error(schema: Any) -> None:
    assert isinstance(why_too_large(OutputConstraint.json_schema(json.dumps(schema))), str | None)
