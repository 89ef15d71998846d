"""The reports for people: every section, everything escaped, nothing from outside."""

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from whet_audit.card import read_card
from whet_audit.collect import Problem, SourceFile
from whet_audit.finding import Finding, Fix, Measured, Priority
from whet_audit.formats import advice, render
from whet_audit.report import FixTrial, Impact, MachineFacts, Phase, Report

Make = Callable[..., Finding]
NASTY = "<script>alert('1')</script> & `x` | *y* {{ 7*7 }}"
SECTIONS = [
    "Executive summary",
    "High priority",
    "Low priority",
    "What to do when",
    "Batch size and memory",
    "Measured before and after",
    "Validation",
    "Rolling back",
    "Not audited",
]
_VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture
def report(make_finding: Make) -> Report:
    findings = (
        make_finding(fix=Fix(f"sum {NASTY}", True, ()), message=f"first {NASTY}"),
        make_finding(code="CMP104", name="python-loop", at=(1, 0, 1, 5), priority=Priority.LOW, path=f"{NASTY}.py"),
        make_finding(code="MEM105", name="kept-graph", at=(2, 0, 2, 5), priority=Priority.LOW),
    )
    return Report(
        findings=findings,
        sources={"train.py": SourceFile("train.py", f"a = 1\nfor x in y:\n    loss.item()  # {NASTY}\n")},
        cards={"SYN101": read_card("SYN101", "x", Priority.HIGH, f"SYN101 x: Title {NASTY}.\n\nWhy slow    {NASTY}")},
        problems=(Problem("bad.py", 3, f"does not parse: {NASTY}"),),
        notes=(f"big.py: {NASTY}",),
        num_files=2,
        num_lines=40,
        machine=MachineFacts(8, 32_000_000_000, "NVIDIA H100", 80_000_000_000, 2),
        program="whet audit",
        arguments="src",
    )


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "h2":
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data
        if self._open[-1:] == ["h2"]:
            self.headings[-1] += data


def test_html_holds_everything_and_nothing_from_outside(report: Report) -> None:
    text = render(report, "html")
    page = _Page(text)
    assert page.headings == SECTIONS
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert (attributes.get("href") or "#").startswith("#")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert {(attributes.get("href") or "#")[1:] for tag, attributes in page.tags if tag == "a"} == set(ids)
    said = (
        f"first {NASTY}",
        f"sum {NASTY}",
        f"Title {NASTY}",
        f"# {NASTY}",
        f"does not parse: {NASTY}",
        f"big.py: {NASTY}",
    )
    for each in said:
        assert each in page.text
    assert "49" not in page.text
    assert ("mark", {}) in page.tags
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in style


def test_markdown_has_every_section_and_escapes(report: Report) -> None:
    text = render(report, "markdown")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside.replace("\\`", ""))
    assert "<" not in outside.replace("\\<", "")
    assert "first \\<script\\>alert('1')\\</script\\> \\& \\`x\\` \\| \\*y\\*" in text
    assert text.count("```") % 2 == 0


def test_a_fence_is_longer_than_what_it_holds(make_finding: Make) -> None:
    source = SourceFile("train.py", "x = '''\n```'''.item()  # ````\n")
    text = render(Report((make_finding(at=(2, 0, 2, 5)),), sources={"train.py": source}), "markdown")
    assert "\n`````python\n```'''.item()  # ````\n`````\n" in text


def test_what_to_do_when(report: Report) -> None:
    found = {horizon.title: [finding.code for finding in horizon.findings] for horizon in advice.horizons(report)}
    assert found == {"Quick wins": ["SYN101"], "Medium-term": ["MEM105"], "Architecture": ["CMP104"]}


def test_the_memory_strategy_is_the_machines(report: Report) -> None:
    text = " ".join(advice.strategy(report))
    assert "8 cores, 32 GB of memory, 2 × NVIDIA H100 with 80 GB each" in text
    assert "72 GB (90% of 80 GB) hold at most 4.5 billion" in text  # 72e9 / 16
    assert "start from 3 workers for each GPU" in text
    assert "MEM105 kept-graph" in text


def test_without_a_gpu_and_without_a_machine(make_finding: Make) -> None:
    text = " ".join(advice.strategy(Report((), machine=MachineFacts(2, 8_000_000_000))))
    assert "2 cores, 8 GB of memory, no GPU" in text
    assert "start from 1 worker," in text
    assert "non_blocking bring nothing" in text
    assert " ".join(advice.strategy(Report(()))).startswith("The machine is not known")


IMPACT = Impact(
    command="whet audit train.py --measure -- --steps 20",
    trials=(
        FixTrial("MOV101", "copy", 1, ("ahead",), True, "kept", Measured(1.5, 1.4, 1.6, "pass", "same losses")),
        FixTrial("SYN101", "item", 1, ("later",), True, "no gain", Measured(1.0, 0.9, 1.1, "no gain")),
        FixTrial("DAT101", "load", 1, ("fork",), True, "failed", Measured(7.0, 6.0, 8.0, "failed"), "it hangs"),
    ),
    before_ms=10.0,
    total=Measured(1.5, 1.4, 1.6, "pass", "same losses"),
    phases=(Phase("forward", 10.0, 8.0), Phase("data <wait>", 4.0)),
    num_steps=12,
)


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_what_was_measured(name: str, make_finding: Make) -> None:
    text = render(Report((make_finding(),), impact=IMPACT, num_files=1), name)
    plain = _Page(text).text if name == "html" else text.replace("\\", "")
    assert "1.50× faster a step with 1 fix, measured" in plain
    assert "1.50× (1.40–1.60), pass; same losses" in plain
    assert "no: no gain" in plain
    assert "no: failed (it hangs)" in plain
    assert "7.00" not in plain  # what a run that failed gave is no evidence
    assert "each of at most 12 optimiser steps" in plain
    assert "data <wait>" in plain
    assert "Nothing was measured" not in plain


def test_estimates_are_never_called_measured(report: Report) -> None:
    text = render(report, "markdown")
    assert "Nothing was measured" in text
    assert text.count("- Measured: not measured") == 3


def test_the_summary_counts(report: Report) -> None:
    assert report.summary() == ("3 findings (1 high, 2 low) in 2 files; 1 file not read\n1 can be fixed with --fix")
