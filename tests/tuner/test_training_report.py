"""report.html, the tables and --json of a tuned training, made from results whose figures are known."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import fake_training_results as fake
import pytest
from rich.console import Console

from whet.cli.training_tables import show_result
from whet.techniques.proof.loss_proof import judge
from whet.tuner.headline import headline
from whet.tuner.report import write_report
from whet.tuner.result import Result
from whet.tuner.training.loss_chart import loss_chart
from whet.tuner.training.report import render

MAKERS = {"gain": fake.gain, "no-gain": fake.no_gain, "worse": fake.worse}


class Page(HTMLParser):
    """Collect the tags, the ids, the links and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [found["href"] or ""] if "href" in found else []

    def handle_data(self, data: str) -> None:
        self.text += data


def written(result: Result, directory: Path) -> str:
    write_report(result, directory / "report.html", render)
    return (directory / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(fake.gain(joules=11.4), tmp_path_factory.mktemp("gain"))


@pytest.mark.parametrize("name", MAKERS)
def test_the_page_stands_alone_and_links_within_itself(name: str, tmp_path: Path) -> None:
    text = written(MAKERS[name](), tmp_path)
    page = Page(text)
    for outside in ("http:", "https:", " src=", "@import", "#0a00", "javascript:"):
        assert outside not in text
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_the_page_says_what_was_gained_and_how_to_use_it(html: str) -> None:
    text = " ".join(Page(html).text.split())
    assert "2.5x the throughput, same held-out loss" in text
    assert "model, optimizer, loader = whet.prepare(" in text
    assert "346 → 138 ms" in text
    assert "490 → 381 MB" in text
    assert "31.4 s" in text, "compilation stands apart"
    assert "11.4 J" in text


def test_the_page_shows_each_part_of_the_step_and_of_the_memory(html: str) -> None:
    text = " ".join(Page(html).text.split())
    for words in ("data0.61% 2.10 ms", "products72% 249 ms", "optimiser3.9% 13.6 ms", "loss3.1% 10.7 ms"):
        assert words in text
    assert "parameters 15.2 MB · gradients 15.2 MB · optimiser 30.4 MB · activations and the rest 291 MB" in text


def test_the_page_shows_forward_and_backward_of_the_layers(html: str) -> None:
    rows = html.partition('id="step"')[2].partition("</section>")[0].split("<tr>")
    head = " ".join(re.sub("<[^>]+>", " ", next(row for row in rows if "lm_head" in row)).split())
    assert head == "1 lm_head Linear 1 20.0 ms 41.0 ms 19% compute 71% 6.44 GFLOP 61.0 MB"
    assert "1 more" in rows[-1]


def test_failures_are_listed_with_their_step_and_reason(html: str) -> None:
    text = " ".join(Page(html).text.split())
    assert "the loss of step 7 is nan" in text
    assert "cosine 0.9311 at least (lm_head.weight)" in text
    assert "7 trials: 5 done, 1 rejected, 1 failed" in text


def test_text_of_a_target_is_no_markup(tmp_path: Path) -> None:
    result = fake.gain()
    result.target = "<b>train.py</b>:workload"
    assert "<b>train.py" not in written(result, tmp_path)


def test_a_result_of_an_earlier_version_still_shows(tmp_path: Path) -> None:
    """It has no seconds of the parts, no set-up, no energy and no name of the score."""
    old = json.loads(fake.gain().model_dump_json())
    del old["profile"]
    for point in (*old["trials"], *old["finalists"], old["best"], old["baseline"], old["compile_only"]):
        for name in ("set_up_s", "joules_per_step"):
            (point.get("training") or {}).pop(name, None)
        for name in ("score", "failure"):
            (point.get("losses") or {}).pop(name, None)
    result = Result.model_validate(old)
    assert result.best.losses is not None and "same held-out loss" in result.best.losses.words
    assert "products" in written(result, tmp_path)
    assert result.summary()["phases_s"] is None


def test_the_chart_places_each_pair_by_its_difference() -> None:
    proof = fake.pairs([0.001, -0.001, 0.0])
    right, left, zero = (_filled(loss_chart(proof))[i] for i in range(3))
    assert left < zero < right
    assert right - zero == pytest.approx(zero - left, abs=0.2)
    mirrored = _filled(loss_chart(proof, higher_is_better=True))
    assert mirrored[1] > mirrored[0], "a lower score is the worse one"
    assert "the run failed" in loss_chart(fake.worse().finalists[0].losses)  # type: ignore[arg-type]


def _filled(svg: str) -> list[float]:
    """Return where the filled dots stand, row by row."""
    return [float(dot.partition('cx="')[2].partition('"')[0]) for dot in svg.split("<circle") if 'r="4.5"' in dot]


def test_words_name_the_score_that_was_compared() -> None:
    made = list(fake.pairs([0.0002, -0.0003, 0.0001]).pairs)
    assert judge(made, allowed=0.0025).words.startswith("same held-out loss: ")
    assert judge(made, allowed=0.0025, score="training loss").words.startswith(
        "same training loss: +0.00% over 3 pairs"
    )
    worse = [pair.model_copy(update={"new": 1.1 * pair.new, "new_middle": 1.1 * pair.new_middle}) for pair in made]
    assert judge(worse, allowed=0.0025, score="accuracy").words.startswith("worse accuracy: +10.")
    assert "nan (seed 2)" in fake.worse().sentence


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", MAKERS)
def test_the_table_fits_into_the_terminal(name: str, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    show_result(console, MAKERS[name]())
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    if name == "gain":
        assert any("Set-up, once: 31.4 s" in line for line in lines)
        assert any("It takes 352 MB: 15.2 MB parameters" in line for line in lines)


def test_json_has_the_figures_of_the_page() -> None:
    found = fake.gain(joules=11.4).summary()
    assert found["phases_s"]["products"] == pytest.approx(0.2492)
    assert sum(found["phases_s"].values()) == pytest.approx(0.346)
    training = found["best"]["training"]
    assert (training["set_up_s"], training["joules_per_step"]) == (31.4, 11.4)
    assert training["memory"]["optimizer_bytes"] == 30_431_420
    assert found["unit"] == "tokens"


def test_headlines() -> None:
    exact = fake.gain()
    exact.best = exact.finalists[1]
    assert headline(exact).words == "1.03x the throughput, same gradients and updates"
    smaller = fake.gain()
    smaller.objective = "memory"
    assert headline(smaller).words == "about three quarters of the memory, same held-out loss, 2.5x faster"
