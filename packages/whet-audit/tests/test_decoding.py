"""Reading source as Python does; Python itself is the judge."""

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whet_audit.decoding import Undecodable, decode

HEADERS = [
    b"",
    b"# plain\n",
    b"# -*- coding: utf-8 -*-\n",
    b"# -*- coding: latin-1 -*-\n",
    b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\n",
    b"\n\n# coding: latin-1\n",
    b"# coding: no-such-encoding\n",
    b"# coding: rot13\n",
    b"x = 1\n# coding: latin-1\n",
]


@given(
    st.sampled_from(HEADERS),
    st.booleans(),
    st.binary(max_size=30).map(lambda data: bytes(byte for byte in data if byte not in b"\n\r'\\")),
)
@example(b"", False, b"\xe9")
@example(b"# -*- coding: latin-1 -*-\n", True, b"\xe9")
def test_reads_what_python_reads(header: bytes, marked: bool, rest: bytes) -> None:
    data = (codecs.BOM_UTF8 if marked else b"") + header + b"s = '" + rest + b"'\n"
    try:
        compile(data, "file.py", "exec")
        can_be_read = True
    except (SyntaxError, ValueError):
        can_be_read = False
    try:
        text, encoding = decode(data)
    except Undecodable as error:
        assert not can_be_read
        assert error.line >= 1
        assert "\n" not in error.message
    else:
        assert can_be_read
        assert not text.startswith("\ufeff")
        assert text.encode(encoding) == data


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (b"a = 1\nb = 2\nc = '\xff'\n", 3, "not UTF-8"),
        (b"a = 1\n\0\n", 2, "NUL"),
        ("a = 1\n".encode("utf-16"), 1, "UTF-16"),
        (b"# coding: klingon\n", 1, "klingon"),
        (b"# coding: ascii\nx = '\xe9'\n", 2, "not ascii"),
    ],
)
def test_what_cannot_be_read_names_its_line(data: bytes, line: int, said: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decode(data)
    assert caught.value.line == line
    assert said in caught.value.message


def test_line_ends_stay() -> None:
    assert decode(b"a\r\nb\rc\n")[0] == "a\r\nb\rc\n"
