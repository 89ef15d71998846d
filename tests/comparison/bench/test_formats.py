import csv
import io
from xml.etree import ElementTree

import pytest

from whet.comparison.bench.formats import github_annotations, junit_xml, sentence, sweep_csv
from whet.comparison.bench.report import BenchmarkVerdict, Gate, Point, Sweep


def _gate() -> Gate:
    return Gate(
        outcome="fail",
        compared="the work tree against main",
        tolerance=0.02,
        fingerprint="0" * 12,
        seconds=12.5,
        verdicts=[
            BenchmarkVerdict(
                label="a.py:f (batch 8, seq 128)", outcome="fail", slowdown=1.031, ci95=(1.02, 1.042), num_pairs=8
            ),
            BenchmarkVerdict(label="b", outcome="pass", slowdown=0.998, ci95=(0.99, 1.005), num_pairs=5),
            BenchmarkVerdict(label="c", outcome="inconclusive", slowdown=1.01, ci95=(0.98, 1.04), num_pairs=20),
            BenchmarkVerdict(label="d", outcome="inconclusive", reason="in main: ValueError: 100% <wrong>\nsecond"),
        ],
    )


def test_a_sentence_says_which_way_and_how_sure() -> None:
    said = [sentence(v) for v in _gate().verdicts]
    assert said[0] == "3.1% slower (95% interval +2.0% to +4.2%, 8 pairs)"
    assert said[1].startswith("0.2% faster")
    assert said[3].startswith("in main: ValueError")


def test_github_reads_one_line_a_verdict() -> None:
    lines = github_annotations(_gate()).split("\n")
    assert [line.split(" ")[0] for line in lines] == ["::error", "::notice", "::warning", "::warning"]
    assert lines[0].startswith("::error title=whet%3A a.py%3Af (batch 8%2C seq 128) FAIL::3.1%25 slower")
    assert lines[3].endswith("100%25 <wrong>%0Asecond")


def test_junit_counts_what_it_holds() -> None:
    suite = ElementTree.fromstring(junit_xml(_gate()))
    assert suite.tag == "testsuite"
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "4", "failures": "1", "skipped": "1", "errors": "1"}
    assert len(suite.findall("testcase/failure")) == 1
    error = suite.find("testcase/error")
    assert error is not None
    assert "<wrong>" in (error.get("message") or "")


def test_csv_can_be_read_back() -> None:
    points = [
        Point(target="a,b", sizes={"batch": 8}, latency_ms=1.5, peak_bytes=10),
        Point(target="a,b", sizes={"batch": 32}, status="failed", reason='does not fit, "really"'),
    ]
    sweep = Sweep(fingerprint="0" * 12, machine={}, points=points)
    rows = list(csv.DictReader(io.StringIO(sweep_csv(sweep))))
    assert [row["batch"] for row in rows] == ["8", "32"]
    assert float(rows[0]["latency_ms"]) == pytest.approx(1.5)
    assert rows[1]["reason"] == 'does not fit, "really"'
    assert rows[1]["latency_ms"] == rows[0]["seq"] == ""
