"""Traces as people have them: read back what was written, one clear line for what is damaged."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import TraceError
from whet.server.load_test.trace import Arrival, Trace, parse_trace, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LINE = "2023-11-16 18:17:03.9799600,4808,10\n"
REAL = Path(__file__).parents[3].parent / "shared" / "data" / "traces"

lengths = st.integers(1, 10**9 - 1)
micros = st.integers(0, 10**12)


def parse(text: str) -> Trace:
    return parse_trace(text.splitlines(keepends=True), "t.csv")


@given(st.lists(st.tuples(micros, lengths, lengths), min_size=1), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_what_was_written_is_read_back_in_the_order_of_time(
    requests: list[tuple[int, int, int]], with_zone: bool, line_end: str
) -> None:
    begin = datetime(2023, 11, 16, tzinfo=UTC if with_zone else None)
    rows = [f"{begin + timedelta(microseconds=at)},{num_in},{num_out}" for at, num_in, num_out in requests]
    trace = parse(line_end.join([HEADER.strip(), *rows]))
    first = min(at for at, _, _ in requests)
    expected = sorted(requests, key=lambda request: request[0])
    assert [(a.num_input, a.num_output) for a in trace.arrivals] == [request[1:] for request in expected]
    assert [a.at_s for a in trace.arrivals] == pytest.approx([(at - first) / 1e6 for at, _, _ in expected], abs=2e-6)
    assert trace.was_sorted == (requests == expected)


def test_seven_decimals_seconds_other_columns_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + LINE + "2023-11-16 18:17:04.9799605,1,2\n").encode())
    assert read_trace(path).arrivals == (Arrival(0.0, 4808, 10), Arrival(1.0, 1, 2))
    text = 'id,GeneratedTokens,"timestamp",x,CONTEXTTOKENS\n\na,5,10.5,"1,2",7\n\nb,6,12,,8\n'
    assert parse(text).arrivals == (Arrival(0.0, 7, 5), Arrival(1.5, 8, 6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv is empty"),
        ("\n \n", "t.csv is empty"),
        (HEADER, "t.csv holds no request"),
        ("a,b\n1,2\n", "t.csv line 1: no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n", "t.csv line 1: no column GeneratedTokens"),
        (HEADER + LINE + "2023-11-16 18:17:04,12\n", "t.csv line 3: 2 fields"),
        (HEADER + LINE + "yesterday,12,3\n", "t.csv line 3: TIMESTAMP is 'yesterday'"),
        (HEADER + LINE + "2023-13-16 18:17:04,12,3\n", "t.csv line 3: TIMESTAMP is '2023-13-16 18:17:04'"),
        (HEADER + LINE + "3.5,12,3\n", "t.csv line 3: TIMESTAMP is '3.5', seconds; the first request has a date"),
        (HEADER + LINE + "2023-11-16 18:17:04+00:00,12,3\n", "a date with a time zone; the first"),
        (HEADER + "nan,12,3\n", "t.csv line 2: TIMESTAMP is 'nan'"),
        (HEADER + LINE + LINE.replace("4808", "0"), "t.csv line 3: ContextTokens is '0'"),
        (HEADER + LINE + LINE.replace("4808", "-5"), "t.csv line 3: ContextTokens is '-5'"),
        (HEADER + LINE + LINE.replace(",10", ",1e3"), "t.csv line 3: GeneratedTokens is '1e3'"),
        (HEADER + LINE + LINE.replace(",10", ","), "t.csv line 3: GeneratedTokens is ''"),
        (HEADER + LINE + LINE.replace(",10", "," + "9" * 5000), "t.csv line 3: GeneratedTokens is"),
        (HEADER + LINE + '"2023-11-16,12,3', "t.csv line 3: unexpected end of data"),
    ],
)
def test_what_is_damaged_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        parse(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@given(st.text(), st.integers(0, 3))
def test_any_text_is_a_trace_or_one_clear_line(text: str, num_good: int) -> None:
    try:
        trace = parse(HEADER + LINE * num_good + text)
    except TraceError as error:
        assert str(error).startswith("t.csv")
    else:
        assert len(trace.arrivals) >= num_good


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "binary").write_bytes(b"\x93NUMPY\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8 text"):
        read_trace(tmp_path / "binary")


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data/traces is not here")
@pytest.mark.parametrize("name", ["code", "conv"])
def test_the_traces_of_azure(name: str) -> None:
    path = REAL / f"AzureLLMInferenceTrace_{name}.csv"
    trace = read_trace(path)
    rows = [line.split(",") for line in path.read_text().split()[1:]]  # a date and a time: two words a line
    times, counts = rows[0::2], rows[1::2]
    assert trace.was_sorted
    assert len(trace.arrivals) == len(times) == {"code": 8819, "conv": 19366}[name]
    assert sum(a.num_input for a in trace.arrivals) == sum(int(cells[1]) for cells in counts)
    assert sum(a.num_output for a in trace.arrivals) == sum(int(cells[2]) for cells in counts)
    clock = [[float(part) for part in cells[0].split(":")] for cells in counts]
    seconds = [hours * 3600 + minutes * 60 + rest for hours, minutes, rest in clock]
    assert trace.arrivals[-1].at_s == pytest.approx(seconds[-1] - seconds[0], abs=1e-5)
    assert trace.arrivals[1234].at_s == pytest.approx(seconds[1234] - seconds[0], abs=1e-5)
