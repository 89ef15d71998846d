"""How calls are written: the grammars of each format, judged by texts that they take and refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import FAMILIES, Family

from whet.errors import OptionError
from whet.server.grammars import Grammars
from whet.server.output_constraint import OutputConstraint
from whet.server.text import Tokenizer
from whet.server.tool_formats import FORMATS, CallGrammar, find_format
from whet.server.tool_parser import Arguments, CallBegins, Content, ToolParser

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
FUNCTIONS: dict[str, dict[str, Any] | None] = {"f": SCHEMA, 'g"': None}
CALLS = {
    "hermes": [
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x":1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g\\"", "arguments": {}}\n</tool_call>',
    ],
    "llama3_json": [
        '{"name": "f", "parameters": {"x": 1}}',
        '{"name": "f", "parameters": {"x": 1}}; {"name": "g\\"", "parameters": {}}',
    ],
}
for _name, _begin, _end in (
    ("mistral", "[TOOL_CALLS]", ""),
    ("granite", "<|tool_call|>", ""),
    ("jamba", "<tool_calls>", "</tool_calls>"),
    ("phi4_mini_json", "functools", ""),
):
    CALLS[_name] = [
        _begin + '[{"name": "f", "arguments": {"x": 1}}]' + _end,
        _begin + '[{"name": "f", "arguments": {"x": 1}}, {"name": "g\\"", "arguments": {}}]' + _end,
    ]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name + "-special" * bool(family.special))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Family, Tokenizer]:
    return request.param, request.param.write(tmp_path_factory.mktemp("family"))


def takes(tokenizer: Tokenizer, structure: OutputConstraint, text: str) -> bool:
    """Whether an output of this text is one that the structure allows, as a whole."""
    guide = Grammars(tokenizer, tokenizer.vocab_size).guide(structure)
    ids = tokenizer.encode(text, False)
    return guide.num_valid(ids) == len(ids) and guide.matcher.consume_tokens(ids) and guide.matcher.is_accepting()


def test_the_template_says_the_format(family: tuple[Family, Tokenizer]) -> None:
    kind, tokenizer = family
    assert find_format(tokenizer.chat_template.text) is FORMATS[kind.name]
    assert find_format(tokenizer.chat_template.text.replace("tools", "other")) is None
    assert find_format("", "mistral") is FORMATS["mistral"]
    assert find_format("{{ tools }}") is None
    with pytest.raises(OptionError, match="--tool-call-parser nope: write one of hermes, llama3_json"):
        find_format("", "nope")


def test_an_answer_that_must_call(family: tuple[Family, Tokenizer]) -> None:
    kind, tokenizer = family
    form = FORMATS[kind.name]
    one, two = CALLS[kind.name]
    several = CallGrammar(form, FUNCTIONS, tokenizer.special_id, several=True).required()
    single = CallGrammar(form, FUNCTIONS, tokenizer.special_id, several=False).required()
    assert takes(tokenizer, several, one)
    assert takes(tokenizer, several, two)
    assert takes(tokenizer, single, one)
    assert not takes(tokenizer, single, two)
    for wrong in ("Hello", "", one.replace("1", '"a"'), one.replace('"f"', '"h"'), one.replace('{"x": 1}', "{}")):
        assert not takes(tokenizer, several, wrong)


def test_an_answer_that_may_call_strictly(family: tuple[Family, Tokenizer]) -> None:
    kind, tokenizer = family
    form = FORMATS[kind.name]
    one, two = CALLS[kind.name]
    several = CallGrammar(form, FUNCTIONS, tokenizer.special_id, several=True).strict()
    single = CallGrammar(form, FUNCTIONS, tokenizer.special_id, several=False).strict()
    for structure in (several, single):
        assert takes(tokenizer, structure, "Hello, é🙂 <there> [1]")
        assert takes(tokenizer, structure, "")
        assert takes(tokenizer, structure, one)
        assert form.is_bare or takes(tokenizer, structure, "Let me see.\n" + one)
        assert not takes(tokenizer, structure, one.replace("1", '"a"'))
    assert takes(tokenizer, several, two)
    assert not takes(tokenizer, single, two)


def test_the_parser_reads_what_the_grammar_writes(family: tuple[Family, Tokenizer]) -> None:
    kind, _ = family
    parser = ToolParser(FORMATS[kind.name], FUNCTIONS.keys())
    events = parser.add(CALLS[kind.name][1]) + parser.finish()
    assert not [event for event in events if isinstance(event, Content)]
    assert [event.name for event in events if isinstance(event, CallBegins)] == ["f", 'g"']
    pieces = [event for event in events if isinstance(event, Arguments)]
    assert [json.loads("".join(p.text for p in pieces if p.index == i)) for i in (0, 1)] == [{"x": 1}, {}]


def test_ids_are_as_long_as_the_template_wants() -> None:
    ids = [FORMATS["mistral"].new_id() for _ in range(20)]
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert len(set(ids)) == 20
    assert FORMATS["hermes"].new_id().startswith("call_")


def test_templates_get_tools(tmp_path: Path) -> None:
    tokenizer = FAMILIES[0].write(tmp_path)
    assert tokenizer.chat([{"role": "user", "content": "x"}]) == "[user]x"
    assert tokenizer.chat([{"role": "user", "content": "x"}], tools=[{"type": "function"}]) == (
        'TOOLS{"type": "function"}[user]x'
    )
