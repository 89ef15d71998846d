"""The live figures of the chat page in a real browser, and servers that end and come back."""

from typing import Any

import pytest
from fake_server import FakeServer, live
from talking import answer, say, wait_for_tile

Page = Any


def test_figures_move(page: Page, server: FakeServer) -> None:
    page.goto(server.url)
    wait_for_tile(page, "Tokens/s", "118")
    tiles = {
        "Running": "3\nof 64", "Waiting": "2\n", "KV cache": "25 %", "Prefix hits": "75 %", "Drafts accepted": "62 %",
        "Preemptions": "4\n", "Prompt tokens": "12,000\n", "Requests ended": "42\n40 stop · 2 length",
    }  # fmt: skip
    for label, text in tiles.items():
        assert text in page.locator(f'.tile[data-label="{label}"]').inner_text()
    assert page.locator("h1").inner_text() == "docs-gpt"
    assert "up for 1 min 15 s" in page.locator("#facts").inner_text()
    assert page.locator("#status").inner_text() == "serving"
    server.live = live(
        phase="draining", max_model_len=512, tokens_per_s=240.0, num_running=9, kv_cache_usage=0.5,
        prefix_cache_queries=8100,
    )  # fmt: skip
    wait_for_tile(page, "Tokens/s", "240")
    assert page.locator("#status").inner_text() == "about to end"
    assert "128 tokens" in page.locator("#chosen").inner_text()  # a quarter of what fits, for several turns
    chart = page.locator(".chart", has_text="Requests")
    assert chart.locator(".legend").inner_text().split() == ["running", "9", "waiting", "2"]
    assert "running 9, waiting 2" in (chart.locator(".plot").get_attribute("aria-label") or "")
    assert len(chart.locator(".plot").evaluate("e => e.plot.uplot.data[1]")) >= 2  # a line from the first sample on
    cache = page.locator(".chart", has_text="KV cache").locator(".plot")
    assert cache.evaluate("e => e.plot.uplot.axes[1]._values") == ["0", "50", "100"]
    values = cache.evaluate("e => e.plot.uplot.data[1]")
    assert (values[0], values[-1]) == (25, 50)
    # The newest value lies half way up, at the right edge of what is drawn.
    at = cache.evaluate("e => e.plot.uplot.valToPos(50, 'y') / e.plot.uplot.over.clientHeight")
    assert at == pytest.approx(0.5, abs=0.01)
    assert cache.evaluate(_LINE) == [True, False]
    assert "0 %" in page.locator(".chart", has_text="Shares").locator(".legend").inner_text()  # no hit of the last 100
    chart.locator(".plot").focus()
    for _ in range(30):  # a step is a second
        page.keyboard.press("ArrowLeft")
    assert "running 3" in chart.locator(".legend").inner_text()


# Whether the canvas has the line's colour where its newest value is, and whether it has it at three quarters.
_LINE = """element => {
  const { uplot, drawn } = element.plot;
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--c0").trim();
  const wanted = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const x = Math.round(uplot.valToPos(drawn.places[drawn.places.length - 1], "x", true));
  return [50, 75].map((value) => {
    const y = Math.round(uplot.valToPos(value, "y", true));
    const { data } = uplot.ctx.getImageData(x - 2, y - 2, 3, 5);
    for (let at = 0; at < data.length; at += 4)
      if (wanted.every((level, i) => Math.abs(data[at + i] - level) < 60) && data[at + 3] > 100) return true;
    return false;
  });
}"""


def test_it_survives_the_server_and_takes_up_the_next_one(page: Page, server: FakeServer) -> None:
    page.goto(server.url)
    wait_for_tile(page, "Running", "3")
    server.close()
    page.locator("#status", has_text="no answer").wait_for()
    assert "asking again" in page.locator("#notice").inner_text()
    wait_for_tile(page, "Running", "3")
    say(page, "hello")
    page.locator(".failure", has_text="cannot be reached").wait_for()
    again = FakeServer(port=server.port, live=live(model="other", uptime_s=1.0, num_running=5, prefix_cache_queries=0))
    try:
        wait_for_tile(page, "Running", "5")
        assert page.locator("#status").inner_text() == "serving"
        assert page.locator("#notice").is_hidden()
        page.get_by_role("button", name="Try again").click()
        answer(page, "Hello there.")
        assert again.asked[0][1]["model"] == "other"
    finally:
        again.close()
