"""What of a model's text is a call and what is content, however the text is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.server.tool_formats import FORMATS
from whet.server.tool_parser import Arguments, CallBegins, Content, ToolParser

NAMES = {"f", "g"}


def read(name: str, pieces: list[str], *, several: bool = True) -> tuple[str, list[tuple[str, str]]]:
    """The content, and each call's name and arguments."""
    parser = ToolParser(FORMATS[name], NAMES, several=several)
    events = [event for piece in pieces for event in parser.add(piece)] + parser.finish()
    content = "".join(event.text for event in events if isinstance(event, Content))
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegins):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            assert event.index == len(calls) - 1, "a call's arguments come before the next call"
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return content, calls


F, G = ("f", "{}"), ("g", "{}")
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"a": "}<x\\"{"}}\n</tool_call>',
        "",
        [("f", '{"a": "}<x\\"{"}')],
    ),
    (
        "hermes",
        'Hi <b\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n'
        '<tool_call>{"name":"g","arguments":{"x":[1,{"y":2}]}, "id": 3}</tool_call> bye',
        "Hi <b\n bye",
        [F, ("g", '{"x":[1,{"y":2}]}')],
    ),
    ("hermes", '\n<tool_call>{"type":"x","name":"f","arguments":{}}</tool_call>\n', "", [F]),
    ("hermes", '<tool_call>{"arguments":{"a": "é"},"name":"f"}</tool_call>tail', "tail", [("f", '{"a": "é"}')]),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name":"f","arguments":null}</tool_call>', "", [F]),
    ("hermes", '<tool_call>{"id":"a\\n","name":"f","arguments":{}}</tool_call>', "", [F]),
    ("hermes", '<tool_call>[{"name":"f","arguments":{}},{"name":"g","arguments":{}}]</tool_call>', "", [F, G]),
    ("hermes", '<tool_call>what <tool_call>{"name":"f","arguments":{}}</tool_call>', "<tool_call>what ", [F]),
    ("hermes", '<tool_call>{"name":"f","arguments":{"a": 1', "", [("f", '{"a": 1')]),
    ("hermes", '<tool_call>{"name":"f","arguments":{}}', "", [F]),
    ("llama3_json", '{"name": "f", "parameters": {}}; {"name":"g","parameters":{}}', "", [F, G]),
    ("llama3_json", '<|python_tag|>{"type":"function","name": "f", "parameters": {}}', "", [F]),
    ("llama3_json", '{"name": "f", "parameters": {}}; and so on', "; and so on", [F]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', "", [F, G]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "h", "arguments": {}}]',
        ', {"name": "h", "arguments": {}}]',
        [F],
    ),
    ("granite", '<|tool_call|>[{"name":"f","arguments":{}}]', "", [F]),
    ("jamba", '<tool_calls>[{"name":"f","arguments":{}}]</tool_calls>', "", [F]),
    ("phi4_mini_json", 'functools[{"name":"f","arguments":{}}]', "", [F]),
]
NO_CALLS = [
    ("hermes", '<tool_call>{"name":"nope","arguments":{}}</tool_call>'),
    ("hermes", '<tool_call>{"name":"f","argum'),
    ("hermes", '<tool_call>{"name":"f"}</tool_call>'),
    ("hermes", '<tool_call>{"name":"f", arguments: 3}</tool_call>'),
    ("hermes", "just <tool_ca text <"),
    ("hermes", "  \n text"),
    ("hermes", "  \n"),
    ("hermes", '{"name":"f","arguments":{}}'),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", ' {"name": 42}'),
    ("llama3_json", "{not json"),
    ("llama3_json", 'text {"name": "f", "parameters": {}}'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[1,2]"),
    ("phi4_mini_json", "functools are not functools[a]"),
]


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"), CASES + [(name, text, text, []) for name, text in NO_CALLS]
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_calls_and_content(name: str, text: str, content: str, calls: list[tuple[str, str]], size: int) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert read(name, pieces) == (content, calls)


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "functools", "[", "]", "{", "}", ",", ";"),
        *('"name"', ":", '"f"', '"h"', '"arguments"', '"parameters"', '"a', "\\", "1", " ", "\n", "é🙂", "text"),
        *('{"name": "f", "arguments": ', '{"a": 1}', '{"name": "g", "parameters": {}}'),
    ]
)


@given(st.sampled_from(sorted(FORMATS)), st.lists(PARTS, max_size=25), st.randoms(use_true_random=False))
def test_any_text_cut_in_any_way(name: str, parts: list[str], random: Any) -> None:
    """However the text is cut, the same comes out; where there is no call, it is the text."""
    text = "".join(parts)
    whole = read(name, [text])
    places = sorted(random.sample(range(len(text) + 1), min(len(text), 5)))
    assert read(name, [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]) == whole
    content, calls = whole
    if not calls:
        assert content == text
    assert all(call in NAMES for call, _ in calls)


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text(max_size=5), st.text(max_size=9)))))
def test_calls_as_models_write_them(calls: list[tuple[str, dict[str, str]]]) -> None:
    written = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls]
    expected = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    assert read("hermes", list("\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written))) == ("", expected)
    assert read("llama3_json", list("; ".join(written))) == ("", expected)
    if calls:
        assert read("mistral", list(f"[TOOL_CALLS][{', '.join(written)}]")) == ("", expected)


def test_only_the_first_call_where_one_is_wanted() -> None:
    text = '{"name": "f", "parameters": {}}; {"name":"g","parameters":{}}'
    assert read("llama3_json", [text], several=False) == ("", [F])


def test_a_head_without_end_is_content() -> None:
    text = '<tool_call>{"name": "f", "x": "' + "a" * 20_000
    parser = ToolParser(FORMATS["hermes"], NAMES)
    shown = [event for letter in (text[i : i + 100] for i in range(0, len(text), 100)) for event in parser.add(letter)]
    assert shown, "it is shown before the end"
    assert "".join(event.text for event in [*shown, *parser.finish()] if isinstance(event, Content)) == text


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (r'{"b": "\ud83d"}', r'{"b": "\ud83d"}'),
        ('{"b":  1.50, "c": 1E2}', '{"b":  1.50, "c": 1E2}'),
        (r'"{\"b\": \"\\ud83d\"}"', r'{"b": "\ud83d"}'),
        ("null", "{}"),
    ],
)
def test_arguments_before_the_name_are_passed_on_as_written(written: str, arguments: str) -> None:
    text = f'<tool_call>{{"arguments": {written}, "name": "f"}}</tool_call>'
    assert read("hermes", [text]) == read("hermes", list(text)) == ("", [("f", arguments)])


@pytest.mark.parametrize(
    "written", ['{"b": 1e999}', '{"b": -Infinity}', '{"b": NaN}', r'"\ud83d"', r'"{\"b\": NaN}"', '"{"']
)
def test_arguments_that_are_no_finite_json_are_content(written: str) -> None:
    text = f'<tool_call>{{"arguments": {written}, "name": "f"}}</tool_call>'
    assert read("hermes", [text]) == read("hermes", list(text)) == (text, [])


ENDLESS = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {}', " "),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "x": "', "a"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}', ', "a": 1'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "\n"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}},', " "),
    ("hermes", '<tool_call>{"x": {', '"a": {'),
    ("hermes", "", '<tool_call>{"a": ["'),
    ("hermes", "", " "),
]


@pytest.mark.parametrize(("name", "first", "more"), ENDLESS)
def test_reading_takes_time_that_grows_as_the_text(
    monkeypatch: pytest.MonkeyPatch, name: str, first: str, more: str
) -> None:
    """Counted is how many characters stand in what is read each time; the text that waits is bounded."""
    num_read = 0
    parser = ToolParser(FORMATS[name], NAMES)
    settle = parser._settled

    def counted() -> list[Any]:
        nonlocal num_read
        num_read += len(parser._text)
        return settle()

    monkeypatch.setattr(parser, "_settled", counted)
    most = 0
    for piece in [first, *[more] * 8_000]:
        parser.add(piece)
        most = max(most, len(parser._text))
    assert most < 10_000
    assert num_read < 512**2 + 40 * len(first + more * 8_000)
