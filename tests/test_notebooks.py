"""What a notebook shows of a result: well-formed, escaped, nothing from outside, and the figures of the text."""

import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fake_results
import pytest
import torch
from rich.console import Console

import whet
from whet.cli.tables import show_result
from whet.comparison.bench.report import BenchmarkVerdict, Gate, Point, Sweep
from whet.comparison.bench.rows import cells
from whet.comparison.claim import claim_of
from whet.core.recipe import Step
from whet.installation.checkup import Advice, Checkup
from whet.measure.machine import Limits
from whet.measure.machine.measured_limits import LimitsByDevice
from whet.server.load_test.bench_serve import LoadTest
from whet.server.load_test.figures import figures_of
from whet.server.load_test.record import Record
from whet.server.load_test.report import Report
from whet.server.load_test.terminal import show_report
from whet.tuner.apply import Applied
from whet.tuner.records import Agreement
from whet.ui import html_tables

EVIL = "<script>alert('&')</script>"
VOID = {"br"}
KNOWN = {"div", "style", "p", "strong", "br", "table", "caption", "thead", "tbody", "tr", "th", "td"}


class Page(HTMLParser):
    """Read a page, and fail where a tag is not closed, is not known, or has an attribute that could load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in KNOWN
        assert {name for name, _ in attrs} <= {"class"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def shown(result: Any) -> list[str]:
    """Return the texts that a notebook shows of a result, after checking its page."""
    page = result._repr_html_()
    assert "url(" not in page
    assert "http" not in re.sub(r"http://127\.0\.0\.1[:\d]*", "", page)
    assert "<script>" not in page
    return Page(page).texts


def test_tables_are_escaped() -> None:
    page = html_tables.block(
        html_tables.paragraph(EVIL, is_strong=True),
        html_tables.table((EVIL, "b"), [(EVIL, "1\n2")], caption=EVIL, numbers=[1]),
        html_tables.table(("empty",), []),
        html_tables.paragraph(""),
    )
    assert Page(page).texts == [EVIL, EVIL, EVIL, "b", EVIL, "1", "2"]


@pytest.mark.parametrize("make", [fake_results.gain, fake_results.no_gain, fake_results.agreement_only])
def test_a_tuning_run_shows_the_figures_of_the_terminal(make: Callable[[], whet.Result]) -> None:
    result = make()
    console = Console(file=io.StringIO(), width=400)
    show_result(console, result)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    page = shown(result)
    found = [figure for figure in page if re.fullmatch(r"[\d.,]+ (ms|µs|s|MB|kB|GB)|[\d.]+×", figure)]
    assert found
    for figure in found:
        assert figure.partition(" ")[0] in text
    assert " ".join(result.sentence.split()) in page


def test_what_comes_from_outside_is_escaped() -> None:
    result = fake_results.gain().model_copy(update={"target": EVIL, "sentence": EVIL, "busy": EVIL, "out": EVIL})
    assert sum(EVIL in text for text in shown(result)) == 4


def test_a_recipe_that_was_applied() -> None:
    applied = Applied(
        steps=(Step(technique="bf16"),),
        dropped=((Step(technique="openvino"), EVIL),),
        size_bytes=1_230_000,
        original_bytes=4_560_000,
        quality_name="accuracy",
        quality_baseline=0.9975,
        quality=0.9925,
        agreement=Agreement(relative_error=0.0, cosine=1.0),
        out="again",
    )
    texts = shown(applied)
    assert {"0.9975", "0.9925", "4.56 MB", "1.23 MB", EVIL, "applied: bf16"} <= set(texts)


def test_a_claim() -> None:
    claim = claim_of([2.0, 2.1, 2.2, 2.0, 2.1, 2.2], [1.0, 1.0, 1.1, 1.0, 1.0, 1.1], noise=1.01)
    texts = shown(claim)
    assert texts[0] == "PASS: the new variant is 2.03 times as fast as the old one"
    assert {"2.10 s", "1.00 s", "6"} <= set(texts)


def test_a_sweep_and_a_gate() -> None:
    point = Point(target=EVIL, sizes={"batch": 8}, p50_ms=1.234, p90_ms=150.2, throughput_per_s=6481.0, busy="x")
    texts = shown(Sweep(fingerprint="0", machine={}, points=[point]))
    assert EVIL in texts
    assert set(cells(point)) <= set(texts)
    verdict = BenchmarkVerdict(label="net", outcome="fail", slowdown=1.25, ci95=(1.2, 1.3), num_pairs=9)
    texts = shown(Gate(outcome="fail", compared="this and main", tolerance=0.02, fingerprint="0", verdicts=[verdict]))
    assert "FAIL: this and main, tolerance 2.0%" in texts
    assert "25.0% slower (95% interval +20.0% to +30.0%, 9 pairs)" in texts


def test_limits() -> None:
    limits = Limits(read_bandwidth=47e9, gemm={"float32": 390e9, "bfloat16": 2575e9}, notes=(EVIL,))
    for found in (limits, LimitsByDevice([limits])):
        assert {"390 GFLOP/s", "2,575 GFLOP/s", "6.60x", "47 GB/s", EVIL} <= set(shown(found))


def test_a_load_test() -> None:
    records: list[Record] = []
    report = Report(
        url="http://127.0.0.1:1", model=EVIL, max_model_len=None, source="rate 4", seed=0, started_at="",
        offered_per_s=4.0, load=None, capacity=None, length_scale=1.0, time_scale=None, num_planned=7, num_cut=0,
        max_in_flight=None, shared_prefix=0, slo=None, figures=figures_of(records), prefix_hit_rate=0.25,
        is_partial=False, busy="other processes",
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=400)
    show_report(console, report)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    texts = shown(LoadTest(report, tuple(records)))
    assert f"{EVIL} at http://127.0.0.1:1" in texts
    for figure in ("7 requests, rate 4; 4.00/s, open loop", "25.0% of the prompt tokens looked up", "TTFT"):
        assert figure in texts
        assert figure in text


def test_an_audit(tmp_path: Path) -> None:
    code = (
        "import torch",
        "",
        "def train(model, loader, optimizer):",
        "    total = 0",
        "    for x in loader:",
        "        torch.cuda.empty_cache()",
        "        loss = model(x).sum()",
        "        loss.backward(retain_graph=True)",
        "        optimizer.step()",
    )
    (tmp_path / "train.py").write_text("\n".join(code) + "\n")
    outcome = whet.audit(tmp_path / "train.py", preview=True)
    texts = shown(outcome)
    assert outcome.report.findings
    for finding in outcome.report.findings:
        assert finding.code in texts
    assert texts[0] == outcome.report.summary().splitlines()[0]


def test_a_profile_and_a_training_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(4, 8) for _ in range(40)]
    with whet.profile() as session:
        for x in batches[:5]:
            with session.section(EVIL):
                model(x)
    assert EVIL in " ".join(shown(session))
    watched = whet.watch(model, optimizer, batches)
    with watched:
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    report = watched.report()
    texts = shown(watched)
    assert report.sentence in texts
    for phase in report.phases:
        assert phase.name in texts


def test_traces(tmp_path: Path) -> None:
    for name, width in (("before.json", 16), ("after.json", 256)):
        layer = torch.nn.Linear(width, width)
        with torch.profiler.profile() as profiler:
            layer(torch.randn(32, width))
        profiler.export_chrome_trace(str(tmp_path / name))
    report = whet.profile_trace(tmp_path / "before.json")
    texts = shown(report)
    assert str(report.account[0].entry) in texts
    changes = whet.profile_trace(tmp_path / "before.json", tmp_path / "after.json")
    assert changes.sentence in shown(changes)


def test_doctor() -> None:
    advice = (Advice(concerns="whet serve", problem=EVIL, remedy="pip install 'torch-whet[serve]'"),)
    found = Checkup(whet="1.2.3", python="3", system="Linux", required=(), extras=(), advice=advice)
    assert {EVIL, "1.2.3", "pip install 'torch-whet[serve]'"} <= set(shown(found))
    assert json.loads(found.model_dump_json())["advice"][0]["problem"] == EVIL
