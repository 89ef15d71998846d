"""The live page in a real browser: numbers that move, the end of the watched process, a new one at its place."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from made_runs import feed, make_run

from browsing import Page, launched, watched
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.server import PageServer
from whet.scripts.monitor.summary_page import render

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


# The browser itself writes a line for each connection that breaks.
_EXPECTED = ("ERR_CONNECTION", "ERR_EMPTY")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    with watched(
        browser, height=900, addresses=("http://127.0.0.1:", "data:", "file:", "about:"), expected=_EXPECTED
    ) as page:
        yield page


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def server(run: Run) -> Iterator[PageServer]:
    server = PageServer(run)
    server.start()
    feed(run)
    yield server
    run.end()
    server.stop()


def tile(page: Page, label: str) -> str:
    return " ".join(page.locator(f'.tile[data-label="{label}"] dd').all_inner_texts()).strip()


def wait_for_tile(page: Page, label: str, text: str) -> None:
    page.locator(f'.tile[data-label="{label}"]', has_text=text).wait_for()


def test_numbers_move(page: Page, server: PageServer, run: Run) -> None:
    page.goto(server.url)
    wait_for_tile(page, "Step latency", "20.0 ms")
    assert tile(page, "Samples per second").startswith("1,600/s")
    assert tile(page, "Tokens per second").startswith("205 k/s")
    assert tile(page, "Data wait").startswith("40 %")
    assert tile(page, "CPU, this run") == "55 % of 4 cores · whole machine 70 %"
    assert tile(page, "Memory").startswith("3.00 GiB")
    assert page.locator('.tile[data-label="GPU"]').count() == 0  # a line of text below says why
    for width in (1300, 1000, 390):
        page.set_viewport_size({"width": width, "height": 800})
        tops = page.locator(".tile").evaluate_all("tiles => tiles.map((tile) => tile.offsetTop)")
        alone = [top for top in set(tops) if tops.count(top) == 1]
        assert width < 700 or not alone, (width, tops)
    assert "GPU: no driver" in page.locator("#unavailable").inner_text()
    assert page.locator("h1").inner_text() == "made <run>"
    feed(run, steps_ms=40)
    wait_for_tile(page, "Step latency", "40.0 ms")
    for _ in range(3):
        feed(run, steps_ms=80)
    wait_for_tile(page, "Step latency", "80.0 ms")
    assert page.locator("#status").inner_text().startswith("running")


def test_charts_have_axes_units_and_values(page: Page, server: PageServer, run: Run) -> None:
    for _ in range(30):
        feed(run, gpu=True)
    page.goto(server.url)
    page.locator(".plot canvas").first.wait_for()
    titles = page.locator("#charts h3:visible").all_inner_texts()
    assert titles[:3] == ["Step latency ms", "Where the step's time goes %", "Samples per second"]
    assert {"GPU %", "GPU memory GiB", "CUDA fragmentation %"} <= set(titles)
    chart = page.locator(".chart", has_text="Memory").first
    assert labels(chart, 1)[0] == "0"
    assert all(text.endswith(" s") for text in labels(chart, 0))
    area = chart.locator(".plot")
    area.hover()
    assert "this run 3.00 GiB" in chart.locator(".tip").inner_text()
    assert "this run 3.00 GiB" in (area.get_attribute("aria-label") or "")
    shares = page.locator(".chart", has_text="Where the step").locator(".legend b").all_inner_texts()
    assert shares == ["40 %", "20 %", "30 %", "10 %"]


def labels(chart: Any, axis: int) -> list[str]:
    """What stands at an axis of a chart: 0 the time, 1 the values."""
    found: list[str] = chart.locator(".plot").evaluate("(e, axis) => e.plot.uplot.axes[axis]._values", axis)
    return found


# Those of the time below the chart of the CPU, once it is drawn.
_LABELS = """([...document.querySelectorAll('.chart')].find((e) => e.textContent.includes('CPU'))
  ?.querySelector('.plot').plot.uplot?.axes[0]._values ?? [])"""


def test_the_canvas_shows_the_lines_and_areas(page: Page, server: PageServer, run: Run) -> None:
    for _ in range(30):
        feed(run)
    page.goto(server.url)
    page.locator(".plot canvas").first.wait_for()
    # A step takes 20 ms throughout: one level line, at its place. 40, 20, 30 and 10 % are stacked up.
    for title, values in (("Step latency", [20]), ("Where the step", [20, 50, 75, 95])):
        chart = page.locator(".chart", has_text=title)
        colours = chart.locator(".swatch").evaluate_all("all => all.map((e) => getComputedStyle(e).backgroundColor)")
        for colour, value in zip(colours, values, strict=True):
            assert set(chart.locator(".plot").evaluate(_COLUMN, [colour, value])) == {"at"}, (title, value)


# Whether a colour lies at a value, within a pixel, at a third, a half and two thirds of the time that has values.
_COLUMN = """(element, [colour, value]) => {
  const { uplot, drawn } = element.plot;
  const wanted = colour.match(/\\d+/g).map(Number);
  const context = uplot.ctx;
  const first = drawn.places[0], last = drawn.places[drawn.places.length - 1];
  return [1 / 3, 1 / 2, 2 / 3].map((part) => {
    const x = Math.round(uplot.valToPos(first + part * (last - first), "x", true));
    const y = Math.round(uplot.valToPos(value, "y", true));
    const pixels = context.getImageData(x, y - 1, 1, 3).data;
    const near = (at) => wanted.every((level, i) => Math.abs(pixels[4 * at + i] - level) < 40);
    return [0, 1, 2].some(near) ? "at" : `${[...pixels]}`;
  });
}"""


def test_it_survives_the_end_and_a_new_run_takes_its_place(page: Page, server: PageServer, run: Run) -> None:
    page.goto(server.url)
    wait_for_tile(page, "Step latency", "20.0 ms")
    run.end(exit_code=1)
    page.locator("#status", has_text="failed").wait_for()
    assert "exit code 1" in page.locator("#notice").inner_text()
    server.stop()
    page.wait_for_timeout(1500)
    assert tile(page, "Step latency").startswith("20.0 ms")
    assert page.locator("#status").inner_text().startswith("failed")
    other_run = make_run("the next")
    other = PageServer(other_run, port=server.port)
    other.start()
    feed(other_run, steps_ms=70)
    wait_for_tile(page, "Step latency", "70.0 ms")
    assert page.locator("h1").inner_text() == "the next"
    assert page.locator("#status").inner_text().startswith("running")
    assert page.locator("#notice").is_hidden()
    other_run.end()
    other.stop()


@pytest.mark.parametrize(("exit_code", "word"), [(0, "ended"), (1, "failed"), (None, "running")])
def test_the_badge_can_be_read(page: Page, server: PageServer, run: Run, exit_code: int | None, word: str) -> None:
    page.goto(server.url)
    if exit_code is not None:
        run.end(exit_code=exit_code)
    badge = page.locator("#status", has_text=word)
    badge.wait_for()
    colours = badge.evaluate("e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]")
    assert contrast(*colours) > 4.5


def contrast(first: str, second: str) -> float:
    """The contrast of two opaque colours, rgb(r, g, b), as WCAG defines it: 1 for equal ones, 21 at most."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_it_says_when_nobody_answers_any_more(page: Page, run: Run) -> None:
    server = PageServer(run)
    server.start()
    feed(run)
    page.goto(server.url)
    wait_for_tile(page, "Step latency", "20.0 ms")
    server.stop()  # as when the process is killed: the run has no end that could be told
    page.locator("#status", has_text="no answer").wait_for()
    assert "Asking again" in page.locator("#notice").inner_text()
    assert tile(page, "CPU, this run") == "55 % of 4 cores · whole machine 70 %"
    again = PageServer(run, port=server.port)
    again.start()
    feed(run, steps_ms=30)
    wait_for_tile(page, "Step latency", "30.0 ms")
    assert page.locator("#notice").is_hidden()
    run.end()
    again.stop()


def test_the_whole_run_beyond_what_is_kept_in_full(page: Page, server: PageServer, run: Run) -> None:
    for _ in range(2000):
        feed(run, num_steps=1)
    page.goto(server.url)
    page.get_by_role("button", name="whole run").click()
    chart = page.locator(".chart", has_text="CPU").first
    page.wait_for_function(f"() => {_LABELS}.includes('30 min')")
    assert 200 < chart.locator(".plot").evaluate("e => e.plot.uplot.data[0].length") < 520
    page.get_by_role("button", name="2 min").click()
    page.wait_for_function(f"() => {_LABELS}.length && !{_LABELS}.includes('30 min')")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "light"), (400, "dark")])
def test_nothing_is_cut_off_and_text_can_be_read(
    browser: Any, server: PageServer, run: Run, width: int, scheme: str
) -> None:
    for _ in range(5):
        feed(run, gpu=True)
    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(server.url)
        page.locator(".plot canvas").first.wait_for(timeout=10_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for selector in (".tile dt", ".tile .value", ".tile .detail", ".legend b", "#status", ".choices button"):
            assert page.evaluate(_CONTRAST, selector) >= 4.5, selector


# Contrast as WCAG 2 defines it, of the first element of a selector with what lies behind it.
_CONTRAST = """selector => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (behind && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light).sort();
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}"""  # noqa: E501


def test_the_saved_page_opens_from_a_file(page: Page, run: Run, tmp_path: Any) -> None:
    for _ in range(10):
        feed(run, gpu=True)
    run.end(0)
    (tmp_path / "summary.html").write_text(render(run), encoding="utf-8")
    page.goto((tmp_path / "summary.html").as_uri())
    page.locator(".plot canvas").first.wait_for()
    assert page.locator("#charts h3:visible").count() == 9
    assert "P50 20.0 ms" in page.locator("table").inner_text()
