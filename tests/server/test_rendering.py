"""Chat templates of strangers: they loop, fill the memory, or fail, and only their own request has an error."""

import json
from pathlib import Path

import pytest

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import RequestError, TargetError
from whet.server.rendering import rendered
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

GIVEN = {"messages": [{"role": "user", "content": "hi é\ud800"}], "add_generation_prompt": True, "variables": {"x": 1}}
LOOP = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
DOUBLED = (
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}"
)


def template(text: str) -> ChatTemplate:
    return ChatTemplate(None, {"chat_template": text}, {"bos_token": "<s>"})


def test_it_renders_as_in_this_process() -> None:
    made = template("{{ bos_token }}{{ x }}{% for m in messages %}{{ m.content }}{% endfor %}")
    assert rendered(made, GIVEN) == made.render(**GIVEN) == "<s>1hi é\ud800"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ 'a' * 3000000000 }}", "MemoryError"),
        ("{{ 'a' | center(3000000000) }}", "MemoryError"),
        ("{{ ('a' * 9000000) ~ ('b' * 9000000) }}", "more than 16777216 characters"),
        ("{{ raise_exception('no') }}", "does not take these messages: no"),
        ("{{ messages.nothing.here }}", "does not take these messages"),
        ("{{ range(10000000) }}", "fails on these messages: OverflowError"),
    ],
)
def test_a_template_that_fails(text: str, message: str) -> None:
    """Nothing is computed while it is loaded."""
    with pytest.raises(RequestError, match=message):
        rendered(template(text), GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("text", [LOOP, DOUBLED])
def test_a_template_that_goes_on_is_ended(text: str) -> None:
    with pytest.raises(RequestError, match="takes more than 5 s on these messages"):
        rendered(template(text), GIVEN)


@pytest.mark.parametrize("text", ["{% if %}", "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}", "{% for x in y %}" * 30])
def test_a_template_that_cannot_be_read(text: str) -> None:
    with pytest.raises(TargetError, match="is damaged"):
        template(text)


def test_a_tokenizer_renders_its_template_apart(tmp_path: Path) -> None:
    for path in (WEIGHTS / "docs-gpt").iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ 'a' * 3000000000 }}")
    with pytest.raises(RequestError, match="MemoryError"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "x"}])


def test_a_panic_of_a_tokenizer_is_an_error_of_the_request(tmp_path: Path) -> None:
    """The library raises a BaseException where an expression backtracks for too long."""
    content = json.loads((WEIGHTS / "docs-gpt" / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(?=(a+)+$)(a+)+$"}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("abc")
    for read in (tokenizer.encode, lambda text: tokenizer.parts([text])):
        with pytest.raises(RequestError, match="the model's tokenizer fails on this text"):
            read("a" * 40 + "b")
