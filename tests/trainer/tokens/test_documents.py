"""Documents are read as they lie in the files, in blocks of any size; what is wrong is said with its place."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import OptionError, TargetError
from whet.trainer.tokens import documents
from whet.trainer.tokens.chat import DEFAULT_TEMPLATE
from whet.trainer.tokens.documents import Part, Sources

TEMPLATE = ChatTemplate(None, {"chat_template": DEFAULT_TEMPLATE}, {"eos_token": "<e>"})


def texts(parts: list[Part]) -> list[str]:
    """Join the parts of each document."""
    found = [""]
    for part in parts:
        found[-1] += part.text
        if part.ends_document:
            found.append("")
    assert found[-1] == ""
    return found[:-1]


def read(*files: Path, **options: Any) -> list[str]:
    return texts(list(Sources.of(files, **options).parts(TEMPLATE)))


@given(st.lists(st.text("ab\n日é", max_size=12), max_size=6), st.sampled_from(["\n\n", "ab", "\n", "aba", "日"]))
def test_separators_divide_a_text_as_split_does(blocks: list[str], separator: str) -> None:
    parts = list(documents._text_parts(blocks, separator))
    assert texts(parts) == "".join(blocks).split(separator)
    assert texts(list(documents._text_parts(blocks, None))) == ["".join(blocks)]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.integers(1, 5), st.booleans())
def test_a_text_is_read_in_blocks(text: str, size: int, has_mark: bool) -> None:
    """Blocks end within characters; line ends stay as they are; the mark in front of a text is left out."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents, "_BLOCK", size)
        path = Path(directory) / "a.txt"
        path.write_bytes((b"\xef\xbb\xbf" if has_mark else b"") + text.encode())
        wanted = text if has_mark else text.removeprefix("\ufeff")
        assert read(path) == [wanted]


def test_files_come_in_their_order_and_may_be_compressed(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one\ntwo")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("three")
    (tmp_path / "c.jsonl").write_text('{"text": "four", "id": 1}\n\n{"text": "fünf \\u00e9"}\n')
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write('{"text": "six"}')
    (tmp_path / "e.json").write_text(json.dumps([{"text": "seven"}, {"text": ""}], indent=1))
    (tmp_path / "f.json").write_text('\ufeff{"text": "eight"}\n{"text": "nine"}\n')
    names = ("b.txt", "a.txt.gz", "c.jsonl", "d.jsonl.gz", "e.json", "f.json")
    found = read(*(tmp_path / name for name in names))
    assert found == ["one\ntwo", "three", "four", "fünf é", "six", "seven", "", "eight", "nine"]
    assert texts(list(Sources.of(str(tmp_path / "b.txt")).parts(TEMPLATE))) == ["one\ntwo"]


def test_keys_say_what_a_record_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    path.write_text(
        "\n".join(
            map(
                json.dumps,
                [
                    {"body": "text"},
                    {"body": messages},
                    {"messages": messages},
                    {"prompt": "1+1=", "completion": "2"},
                    {"prompt": messages[:1], "completion": messages[1:]},
                ],
            )
        )
    )
    parts = list(Sources.of(path, text_key="body").parts(TEMPLATE))
    told = "User: Hi\nAssistant: Ho<e>\n"
    assert texts(parts) == ["text", told, told, "1+1=2", told]
    assert [(part.text, part.is_trained) for part in parts[1:4]] == [
        ("User: Hi\nAssistant:", False),
        (" Ho<e>", True),
        ("\n", False),
    ]
    ended = [part.has_end for part in parts if part.ends_document]
    assert ended == [False, True, True, False, True], "a template says itself where a text ends"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\xff", r"a.txt is not UTF-8: byte 0xff at offset 3; convert it"),
        ("a.txt", "日本".encode() + b"\xe6\x97", r"a.txt is not UTF-8: byte 0xe6 at offset 6"),
        ("a.txt", "日本".encode() + b"\xe6\x97a", r"a.txt is not UTF-8: byte 0xe6 at offset 6"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', r"a.jsonl:2 is not UTF-8: byte 0xff at offset 24"),
        ("a.json", b'[\n{"text": "\xff"}]', r"a.json is not UTF-8: byte 0xff at offset 12"),
        ("a.jsonl", b'{"text": "a"}\n{"text": }', r"a.jsonl:2 is no JSON: Expecting value"),
        ("a.jsonl", b'{"text": "a"}\n[1]', r"a.jsonl:2 holds a list, and no object such as"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1 is no JSON"),
        ("a.json", b'[{"text": "a"}, 3]', r"a.json, record 2 holds an int"),
        ("a.json", b'[{"text": "a"}', r"a.json is no JSON"),
        ("a.jsonl", b'{"body": "a", "id": 2}', r"a.jsonl:1: there is no 'text', nor .*; the keys are: body, id"),
        ("a.jsonl", b"{}", r"the keys are: none"),
        ("a.jsonl", b'{"text": null}', r"a.jsonl:1: text is a NoneType; it must be a text or a list of messages"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a.jsonl:1: the text is not valid Unicode at character 0"),
        ("a.jsonl", b'{"prompt": "a", "completion": 1}', r"a.jsonl:1: prompt and completion are two texts"),
        ("a.jsonl", b'{"messages": []}', r"a.jsonl:1: a conversation is a list of messages"),
        ("a.jsonl", b'{"messages": [{"role": "user", "text": ""}]}', r":1: message 0 needs role and content; it has"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": ""}], "tools": 1}', r":1: tools are a list"),
        ("a.txt.gz", b"no gzip", r"a.txt.gz cannot be read"),
        ("a.txt.gz", gzip.compress(b"abc" * 1000, mtime=0)[:-9], r"a.txt.gz cannot be read"),
        ("a.pdf", b"", r"a.pdf is no file of text that whet knows: it reads .txt"),
        ("a", b"", r"is no file of text that whet knows"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    for size in (1, 1 << 20):
        with (
            pytest.MonkeyPatch.context() as patched,
            pytest.raises(TargetError, match=message) as caught,
        ):
            patched.setattr(documents, "_BLOCK", size)
            read(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"there is no file .*a.txt; check the path"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(TargetError, match=r"b.txt is a directory; name the files in it"):
        read(tmp_path / "b.txt")
    with pytest.raises(OptionError, match="name one file"):
        Sources.of([])
    with pytest.raises(OptionError, match="a separator has one character or more"):
        Sources.of(tmp_path / "a.txt", separator="")
