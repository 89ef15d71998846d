import re
import statistics
import sys
from html.parser import HTMLParser
from pathlib import Path

import fake_results
import pytest

from whet.core.recipe import Step
from whet.errors import OutputError, how_to_install
from whet.tuner import plots
from whet.tuner.figures import final_points, over_compile_only
from whet.tuner.report import render, write_report
from whet.tuner.result import Diagnosed, RefusedTechnique, Result

VOID = {"meta", "br", "hr", "img", "input", "link"}
MAKERS = {"gain": fake_results.gain, "no-gain": fake_results.no_gain, "agreement": fake_results.agreement_only}


class Page(HTMLParser):
    """What a browser would find: tags in balance, the text of each table row, ids, references."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.style = ""
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._attributes(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.style += data
            return
        self.text += data
        if "tr" in self.open and self.rows[-1]:
            self.rows[-1][-1] += data

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "xlink:href"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def row(self, *words: str) -> list[str]:
        """The one row whose first or second cell holds all the words, in whitespace of one kind."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        found = [row for row in rows if all(word in " ".join(row[:2]) for word in words)]
        assert len(found) == 1, (words, found)
        return found[0]


def written(result: Result, directory: Path) -> str:
    write_report(result, directory / "report.html", render)
    return (directory / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def htmls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: written(make(), tmp_path_factory.mktemp(name)) for name, make in MAKERS.items()}


@pytest.fixture(scope="module")
def pages(htmls: dict[str, str]) -> dict[str, Page]:
    return {name: Page(html) for name, html in htmls.items()}


def section(html: str, name: str) -> Page:
    return Page(html[html.index(f'<section id="{name}">') :].partition("</section>")[0] + "</section>")


@pytest.mark.parametrize("name", MAKERS)
def test_page_stands_alone(name: str, htmls: dict[str, str], pages: dict[str, Page]) -> None:
    html, page = htmls[name], pages[name]
    for outside in ("http:", "https:", " src=", "@import", "javascript:", "#0a00"):
        assert outside not in html, outside
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert page.references
    for reference in page.references:
        assert reference.startswith("#")
        assert reference[1:] in page.ids
    assert "prefers-color-scheme: dark" in page.style
    assert "url(" not in page.style


@pytest.mark.parametrize("name", MAKERS)
def test_every_trial_is_listed_with_its_reason(name: str, htmls: dict[str, str]) -> None:
    result, page = MAKERS[name](), section(htmls[name], "trials")
    assert len(page.rows) == 1 + len(result.trials)
    by_number = {row[0].strip(): [cell.strip() for cell in row] for row in page.rows[1:]}
    for trial in result.trials:
        row = by_number[str(trial.number)]
        assert row[2] == trial.status
        for step in trial.steps:
            assert step.technique in row[1]
            for key in step.options:
                assert f"{key}=" in row[1]
        for text in (trial.reason, *trial.notes):
            assert text in row[1]


def test_figures_of_a_gain(htmls: dict[str, str], pages: dict[str, Page]) -> None:
    text = " ".join(pages["gain"].text.split())
    for words in (
        "9.49× 95% interval 9.35–9.68, p = 0.008",
        "56.1 → 5.91 ms",
        "0.9817 → 0.9809 drop 0.08%, allowed 1.0%; higher is better",
        "102 → 24.7 MB 4.15× smaller",
        "612 → 388 MB 1.58× less",
    ):
        assert words in text
    finals = section(htmls["gain"], "finals")
    winner = finals.row("fuse_conv_bn + openvino")
    assert winner[1:10] == [
        "5.91 msp90 6.26 ms", "9.49×", "9.35–9.68", "0.008", "PASS", "0.9809", "24.7 MB", "388 MB", "32%",
    ]  # fmt: skip
    assert finals.row("original")[2:6] == ["—", "—", "—", "—"]
    assert "torch.compile alone" in finals.row("inductor")[0]
    trial = section(htmls["gain"], "trials").row("9", "int8_dynamic")
    assert trial[3] == "≤ 1.10×"
    assert trial[4].startswith("0.92×")
    assert trial[7] == "31%"


def test_gain_over_compile_is_the_paired_ratio() -> None:
    result = fake_results.gain()
    compared = over_compile_only(result)
    assert compared is not None and result.compile_only is not None
    pairs = zip(result.compile_only.process_latencies_ms, result.best.process_latencies_ms, strict=True)
    assert compared.ratio == pytest.approx(statistics.geometric_mean([a / b for a, b in pairs]), rel=1e-12)
    result.compile_only.process_latencies_ms.pop()
    assert over_compile_only(result) is None  # no pairs, no interval


def test_what_was_not_measured_is_a_dash(htmls: dict[str, str]) -> None:
    failed = section(htmls["gain"], "trials").row("8", "int4_weight")
    assert failed[4:] == ["—"] * 7
    screened = section(htmls["agreement"], "finals").row("inductor engine=jit")
    assert screened[5] == "screening only"
    assert screened[8] == "—"  # peak memory 0: nobody measured it
    for html in htmls.values():
        assert not re.search(r">0(\.0+)? ?(MB|GB|kB|ms|µs|×)<", html)


def test_no_gain_is_said_as_it_is(htmls: dict[str, str], pages: dict[str, Page]) -> None:
    page = pages["no-gain"]
    assert "none proved" in page.text
    row = section(htmls["no-gain"], "finals").row("bf16")
    assert row[5] == "INCONCLUSIVE"
    assert "kept" in section(htmls["no-gain"], "finals").row("original")[0]
    assert "41.4 µs" in page.text
    assert "screening figures" in page.text


def test_without_a_metric_agreement_is_shown(htmls: dict[str, str], pages: dict[str, Page]) -> None:
    text = pages["agreement"].text
    assert "cosine 0.9967" in text
    assert "no quality metric was given" in text
    row = section(htmls["agreement"], "trials").row("0", "inductor engine=jit")
    assert row[6].startswith(">0.9999")  # never rounded up to perfect
    assert "error 0.37%" in row[6]


def test_plots_show_the_limits_and_the_winner(htmls: dict[str, str]) -> None:
    html = htmls["gain"]
    for words in (
        "int8 1,640",
        "bf16 812",
        "fp32 131",
        "memory 47.8 GB/s",
        "#6",
        "bound on the gain",
        "var(--compute)",
    ):
        assert words in html
    assert "Roofline" not in htmls["agreement"]  # no layers, no plot and no empty frame


def test_limits_that_lie_close_share_a_label() -> None:
    result = fake_results.gain()
    result.limits["gemm"] = {"int8": 1_030e9, "float32": 131e9, "bfloat16": 939e9}
    drawn = plots.roofline(result)
    assert drawn is not None
    assert "bf16 939, int8 1,030" in drawn
    assert "fp32 131" in drawn


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script><b onload=x>&\' $\\frac{1}{0$'
    result = fake_results.gain()
    result.target = result.sentence = result.quality_name = result.command = evil
    steps = (Step(technique=evil, options={evil: evil}),)
    result.trials[3] = result.trials[3].model_copy(update={"steps": steps})
    result.trials[4] = result.trials[4].model_copy(update={"reason": evil, "notes": (evil,)})
    result.finalists[0].steps = steps
    result.refused.append(RefusedTechnique(technique=evil, reason=evil))
    result.machine = {"chip": evil}
    result.versions = {evil: evil}
    result.fingerprint = evil
    result.limits = {**result.limits, "gemm": {evil: 1e12}, "notes": [evil]}
    assert result.diagnosis is not None
    result.diagnosis.sentence = evil
    result.diagnosis.layers[0].name = result.diagnosis.layers[0].kind = evil
    result.diagnosis.layers[1].bound = '"><script>'
    html = written(result, tmp_path)
    assert "<script" not in html
    assert "<b onload" not in html
    page = Page(html)
    assert "script" not in page.tags
    assert page.text.count("alert(") >= 15


def test_without_matplotlib_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = Page(written(fake_results.gain(), tmp_path))
    assert page.text.count("plots need matplotlib: " + how_to_install("report")) == 3
    assert "9.49×" in page.text


def test_what_a_busy_machine_hides_has_no_figures_and_what_is_unseen_is_said(tmp_path: Path) -> None:
    result = fake_results.gain()
    sentence = "What holds the model back is not known: others used a core while it was measured."
    result.diagnosis = Diagnosed(sentence=sentence, bound="compute-bound", shares={}, share_of_limit=None)
    result.hints = ["mask keeps every place in every batch"]
    page = Page(written(result, tmp_path))
    assert sentence in page.text
    assert "mask keeps every place in every batch" in page.text
    assert "As a whole the original reaches" not in page.text
    assert "As a whole the original reaches" in Page(written(fake_results.gain(), tmp_path)).text


def test_the_same_result_gives_the_same_page(tmp_path: Path, htmls: dict[str, str]) -> None:
    stored = fake_results.gain().model_dump_json()
    assert written(Result.model_validate_json(stored), tmp_path) == htmls["gain"]


def test_recipe_is_shown_as_it_lies_beside(tmp_path: Path) -> None:
    result = fake_results.gain()
    result.recipe.write(tmp_path / "recipe.toml")
    page = Page(written(result, tmp_path))
    assert (tmp_path / "recipe.toml").read_text().strip() in page.text
    assert "whet apply whet-out/resnet-50/recipe.toml hf:models/resnet-50 --out DIR" in page.text
    assert "whet.load('whet-out/resnet-50/model')" in page.text


def test_bare_result_renders(tmp_path: Path) -> None:
    baseline = fake_results.gain().baseline
    baseline.process_latencies_ms = []
    result = Result(
        target="m", verdict="failed", sentence="Every trial failed.", quality_name="loss", baseline=baseline,
        best=baseline,
    )  # fmt: skip
    page = Page(written(result, tmp_path))
    assert "No variant came as far as the finals" in page.text
    assert "No trial was made" in page.text


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write"):
        write_report(fake_results.no_gain(), tmp_path / "missing" / "report.html", render)
    assert not list(tmp_path.iterdir())


def test_finals_hold_each_variant_once() -> None:
    points = final_points(fake_results.gain())
    assert [p.label for p in points].count(points[1].label) == 1
    assert points[0].label == "original"
    assert [p.speedup for p in points[1:]] == sorted((p.speedup for p in points[1:]), reverse=True)


def test_a_doubted_speedup_is_shown_nowhere() -> None:
    result = fake_results.gain()
    result.finalists[0].doubt, result.finalists[0].verdict = "runs differ", "inconclusive"
    result.finalists[0].speedup, result.finalists[0].speedup_ci95 = 30.5, (13.8, 56.8)
    result.finalists[0].p_value = 0.0314
    finals = section(render(result, ""), "finals")
    text = " ".join("".join(finals.text).split())
    assert "INCONCLUSIVE" in text
    assert not any(figure in text for figure in ("30.5", "13.8", "0.031"))


def test_the_original_is_offered_as_what_it_is(tmp_path: Path) -> None:
    result = fake_results.no_gain()
    result.out = str(tmp_path)
    (tmp_path / "model").mkdir()
    assert "<h2>Load the model (the original: nothing was proved faster)</h2>" in render(result, "")


def test_no_line_ends_within_an_option() -> None:
    result = fake_results.gain()
    result.unsaved, result.command = "Use --resume, or <b> a-b.", "whet tune x--y --budget 300s"
    page = render(result, "")
    assert '<span class="option">--budget</span> 300s' in page
    assert "x--y" in page
    assert '<span class="option">--out</span> DIR' in page
    assert ".option { white-space: nowrap; }" in page


def test_the_link_to_the_finals_has_their_heading(htmls: dict[str, str]) -> None:
    assert '<a href="#finals">Final comparison</a>' in htmls["gain"]
    assert "<h2>Final comparison</h2>" in htmls["gain"]


def test_the_result_comes_before_the_recipe_and_is_said_once() -> None:
    page = render(fake_results.gain(), "[[steps]]")
    places = [page.index(text) for text in ("9.5x faster", 'class="tiles"', 'id="use"', "[[steps]]", 'id="finals"')]
    assert places == sorted(places)
    assert "is 9.49x as fast as the original" not in page


def test_a_page_of_a_disturbed_run_has_no_figure_of_it_and_says_how_to_go_on() -> None:
    result = fake_results.gain()
    busy = {"verdict": "inconclusive", "busy": "the machine was busy: 2 cores", "best": result.baseline, "trials": []}
    busy["sentence"] = f"No verdict: {busy['busy']}. The original stays."
    page = render(result.model_copy(update=busy), "")
    assert "56.1" not in page
    assert 'id="finals"' not in page
    assert 'id="diagnosis"' not in page
    assert "close other programs" in page
    assert "--budget 300s --out whet-out/resnet-50 --resume" in re.sub(r"</?span[^>]*>", "", page)
