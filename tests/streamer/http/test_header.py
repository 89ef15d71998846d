"""The header before each picture: what was packed is read, and nothing else passes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import RequestError
from whet.streamer.http.header import KINDS, NUM_BYTES, Header, parse

HEADERS = st.builds(
    Header, st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.floats(allow_nan=False, allow_infinity=False)
)


@given(HEADERS, st.binary(max_size=50))
def test_what_was_packed_is_read(header, jpeg):
    found, rest = parse(header.pack() + jpeg)
    assert (found, bytes(rest)) == (header, jpeg)


def test_the_bytes_are_these():
    packed = Header("computed", 258, 1.5).pack()
    assert packed == b"wf\x01\x02" + b"\x00\x00\x01\x02" + struct.pack(">d", 1.5)
    assert len(packed) == NUM_BYTES == 16


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(message):
    try:
        header, rest = parse(message)
    except RequestError:
        return
    assert header.pack() + bytes(rest) == message


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "16 bytes"),
        (Header("frame", 1, 0.0).pack()[:-1], "16 bytes"),
        (b"xx" + Header("frame", 1, 0.0).pack()[2:], "another version"),
        (b"wf\x02" + Header("frame", 1, 0.0).pack()[3:], "another version"),
        (b"wf\x01\x63" + Header("frame", 1, 0.0).pack()[4:], "kind"),
        (Header("frame", 1, float("nan")).pack(), "time of capture"),
        (Header("frame", 1, float("inf")).pack(), "time of capture"),
    ],
)
def test_what_is_no_header(message, why):
    with pytest.raises(RequestError, match=why):
        parse(message)
