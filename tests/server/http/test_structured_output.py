"""Structured output over HTTP: every field that asks for it, refusals, openai-python's and LangChain's helpers."""

import json
import re
import threading
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import pytest
from asking import Answer, ask, serving
from guided import PERSON, random_engine
from pydantic import BaseModel

from whet.server.grammars import Grammars, Guide
from whet.server.http.request_parsing import SMALL
from whet.server.http.run import HttpServer
from whet.server.output_constraint import OutputConstraint

openai = pytest.importorskip("openai")

MESSAGES = [{"role": "user", "content": "Who?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with random_engine() as engine, serving(engine) as server:  # type: ignore[arg-type]
        yield server


@pytest.fixture
def client(server: HttpServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(server: HttpServer, **fields: Any) -> Answer:
    return ask(server, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 200, "seed": 1, **fields})


def is_person(text: str) -> None:
    jsonschema.validate(json.loads(text), PERSON)


def matches(pattern: str) -> Any:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text)

    return check


SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
GBNF = 'root ::= "(" root ")" | [0-9]{2}'
NESTED = matches(r"\(*[0-9]{2}\)*")
FIELDS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": SCHEMA_FORMAT}, is_person),
    ({"response_format": {"type": "json_object", "schema": PERSON}}, is_person),
    ({"guided_json": PERSON}, is_person),
    ({"guided_json": json.dumps(PERSON), "guided_whitespace_pattern": " "}, is_person),
    ({"guided_json": PERSON, "guided_decoding_backend": "outlines"}, is_person),
    ({"json_schema": PERSON}, is_person),
    ({"json_schema": json.dumps(PERSON)}, is_person),
    ({"structured_outputs": {"json": PERSON}}, is_person),
    ({"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}, is_person),
    ({"guided_regex": r"[a-c]{3}-\d+x"}, matches(r"[a-c]{3}-\d+x")),
    ({"regex": r"[a-c]{3}-\d+x"}, matches(r"[a-c]{3}-\d+x")),
    ({"structured_outputs": {"regex": r"[a-c]{3}"}}, matches(r"[a-c]{3}")),
    ({"guided_choice": ["yes", "no", 'may"be\n']}, matches('yes|no|may"be\n')),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, matches("yes|no")),
    ({"guided_grammar": GBNF}, NESTED),
    ({"grammar": GBNF}, NESTED),
    ({"ebnf": GBNF}, NESTED),
    ({"grammar": 'start: "(" start ")" | /[0-9]{2}/'}, NESTED),
    ({"structured_outputs": {"grammar": GBNF}}, NESTED),
]


@pytest.mark.parametrize(("fields", "check"), FIELDS)
def test_every_field_that_asks_for_a_structure(server: HttpServer, fields: dict[str, Any], check: Any) -> None:
    choice = chat(server, **fields).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    check(choice["message"]["content"])
    body = {"prompt": "Who?", "max_tokens": 200, "seed": 1, **fields}
    choice = ask(server, "/v1/completions", body).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    check(choice["text"])


def test_any_json_object(server: HttpServer) -> None:
    formats = [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
    for fields in formats:
        choice = chat(server, max_tokens=60, **fields).json["choices"][0]
        assert choice["message"]["content"].startswith("{")
        assert choice["finish_reason"] in ("stop", "length")


def test_text_asks_for_nothing(server: HttpServer) -> None:
    plain = chat(server, max_tokens=20).json["choices"][0]
    assert chat(server, max_tokens=20, response_format={"type": "text"}).json["choices"][0] == plain


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_json": {"not": {}}}, "guided_json", "no value is valid by it"),
        ({"guided_json": {"type": "wrong"}}, "guided_json", "type 'wrong' is none of"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_regex": r"a(?=b)"}, "guided_regex", "look-around"),
        ({"grammar": "root ::= other"}, "grammar", "Rule 'other' not found"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs", "structured_outputs.regex: .*unclosed"),
        ({"structured_outputs": {}}, "structured_outputs", "one of json, regex"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs the schema"),
        ({"response_format": SCHEMA_FORMAT, "regex": "a"}, "regex", "response_format and regex both"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "both"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_choice": [""]}, "guided_choice", "at least 1"),
        ({"guided_regex": "a" * (256 * 2**10 + 1)}, "guided_regex", "at most"),
        ({"structural_tag": {}}, "structural_tag", "does not support"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(
    server: HttpServer, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = chat(server, **fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert re.search(message, answer.error["message"])


AMBIGUOUS = 'start: s\ns: s s | s s s | "a" | "b" | " " | /[a-z]/ | /[a-z]+/'


def test_a_grammar_that_becomes_too_ambiguous_is_the_requests_own_error(server: HttpServer) -> None:
    answer = chat(server, guided_grammar=AMBIGUOUS)
    assert (answer.status, answer.error["code"]) == (400, "invalid_structure")
    assert "too many alternatives can go on at one place" in answer.error["message"]


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": [float("nan")]}, "cannot be written as JSON"),
        ({"$defs": {f"a{i}": {"$ref": "#/$defs/a0"} for i in range(501)}}, r"references \(\$ref\)"),
    ],
)
def test_a_schema_that_nobody_can_write_or_compile_is_refused(
    server: HttpServer, schema: dict[str, Any], message: str
) -> None:
    formatted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for fields in ({"guided_json": schema}, {"response_format": formatted}, {"structured_outputs": {"json": schema}}):
        answer = chat(server, **fields)
        assert (answer.status, answer.error["param"]) == (400, next(iter(fields)))
        assert re.search(message, answer.error["message"])


@pytest.mark.parametrize("levels", [201, 600])
def test_a_schema_that_nests_too_deep_is_refused(server: HttpServer, levels: int) -> None:
    answer = chat(server, guided_json=nested(levels))
    assert answer.status == 400
    assert "nested more than 200 levels deep" in answer.error["message"]


def test_a_large_body_keeps_its_structure(server: HttpServer) -> None:
    schema = {**PERSON, "description": "x" * (SMALL + 1), "examples": [None]}
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}}
    with pytest.raises(json.JSONDecodeError):  # the model is random: nothing else makes it write a person
        json.loads(chat(server).json["choices"][0]["message"]["content"])
    choice = chat(server, **fields).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    is_person(choice["message"]["content"])


def test_others_are_answered_while_a_structure_is_compiled(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end, answers = threading.Event(), threading.Event(), list[Answer]()
    compile_anew = Grammars._compile

    def slowly(self: Grammars, structure: OutputConstraint) -> Any:
        has_begun.set()
        assert may_end.wait(20)
        return compile_anew(self, structure)

    monkeypatch.setattr(Grammars, "_compile", slowly)
    waiting = threading.Thread(target=lambda: answers.append(chat(server, guided_regex="never before")))
    waiting.start()
    assert has_begun.wait(20)
    assert ask(server, "/health").status == 200
    assert chat(server, max_tokens=3).status == 200
    assert not answers
    may_end.set()
    waiting.join()
    assert answers[0].json["choices"][0]["message"]["content"] == "never before"


def test_a_structure_is_compiled_once_even_where_none_is_kept(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the event loop would compile it once more."""
    compiled: list[str] = []
    compile_anew = Grammars.guide

    def counted(self: Grammars, structure: OutputConstraint) -> Guide:
        compiled.append(structure.text)
        return compile_anew(self, structure)

    monkeypatch.setattr(Grammars, "guide", counted)
    answer = chat(server, guided_regex="kept by (no|any)one", n=2)
    assert len(answer.json["choices"]) == 2
    assert compiled == ["kept by (no|any)one"]


class Person(BaseModel):
    name: Literal["Ada", "Grace"]
    age: int
    is_here: bool


def test_openai_parses_into_pydantic_models(client: Any) -> None:
    answer = client.chat.completions.parse(
        model="fake", messages=MESSAGES, response_format=Person, max_tokens=200, seed=2, n=3
    )
    people = [choice.message.parsed for choice in answer.choices]
    assert all(isinstance(person, Person) for person in people)


def test_openai_streams_into_pydantic_models(client: Any) -> None:
    with client.chat.completions.stream(
        model="fake", messages=MESSAGES, response_format=Person, max_tokens=200, seed=3
    ) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Person)
    assert "content.delta" in kinds


def test_openai_says_what_was_cut_short(client: Any) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="fake", messages=MESSAGES, response_format=Person, max_tokens=2)


def test_langchain_gets_structured_output(server: HttpServer) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    model = langchain_openai.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="fake", max_tokens=200, seed=5
    )
    assert isinstance(model.with_structured_output(Person).invoke("Who?"), Person)


def test_log_probabilities_are_of_the_allowed_tokens(server: HttpServer) -> None:
    answer = chat(server, guided_choice=["yes", "no"], logprobs=True, top_logprobs=3, temperature=0)
    first = answer.json["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] == first["top_logprobs"][0]["logprob"]
    assert first["top_logprobs"][2]["logprob"] <= 0
    refused = [one for one in first["top_logprobs"] if not ("yes".startswith(one["token"]) or one["token"] in "no")]
    assert all(one["logprob"] == -9999.0 for one in refused)
