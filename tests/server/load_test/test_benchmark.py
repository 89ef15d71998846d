"""What a report says beside its figures."""

import asyncio
from functools import partial

import pytest
from completion_server import FakeServer, tokens

from whet.errors import OptionError
from whet.server.load_test.benchmark import run
from whet.server.load_test.options import Options
from whet.server.load_test.record import Record
from whet.server.load_test.report import Report
from whet.server.load_test.trace import Arrival, Trace

TRACE = Trace(tuple(Arrival(0.004 * i, 10 + i, 8) for i in range(20)), was_sorted=False)


def report_of(server: FakeServer, options: Options) -> tuple[Report, list[Record]]:
    stages: list[str] = []
    report, records = asyncio.run(run(server.url, options, on_stage=stages.append))
    assert stages[0] == "asking the server what it serves"
    assert stages[-1] == "replaying"
    return report, records


def said(report: Report, what: str) -> bool:
    return any(what in note for note in report.notes)


def test_bundled_short_and_unsorted() -> None:
    def short(body: dict[str, int], **options: int) -> object:
        return tokens({**body, "max_tokens": 6}, **options)

    with FakeServer(script=partial(short, bundle=3)) as server:
        report, records = report_of(server, Options(trace=TRACE, source="t", time_scale=1.0))
    assert said(report, "a chunk held 3.0 tokens on average")
    assert said(report, "20 answers were shorter than asked for")
    assert said(report, "not in the order of their time")
    assert [record.arrival.num_input for record in records] == [10 + i for i in range(20)]
    with FakeServer() as server:
        report, _ = report_of(server, Options(rate=500, num_requests=20))
    assert not said(report, "chunk") and not said(report, "shorter")


def test_the_load_asked_for_is_the_load_offered() -> None:
    with FakeServer(script=partial(tokens, token_s=0.001)) as server:
        report, records = report_of(server, Options(trace=TRACE, num_requests=15, load=0.5))
    assert report.capacity is not None and report.time_scale is not None
    assert report.offered_per_s == pytest.approx(0.5 * report.capacity.requests_per_s)
    assert [r.arrival.at_s for r in records] == pytest.approx([0.004 * i * report.time_scale for i in range(15)])


def test_the_same_seed_sends_the_same() -> None:
    options = Options(rate=300, num_requests=12, shared_prefix=5, seed=3)
    sent = []
    for _ in range(2):
        with FakeServer() as server:
            report_of(server, options)
            sent.append(sorted(body["prompt"] for body in server.bodies[-12:]))
    assert sent[0] == sent[1]


def test_exactly_one_kind_of_traffic() -> None:
    with pytest.raises(OptionError, match="either --trace FILE or --rate"):
        Options()
    with pytest.raises(OptionError, match="either --trace FILE or --rate"):
        Options(trace=TRACE, rate=1.0)
