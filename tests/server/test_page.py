"""The chat page in a real browser: text that streams, stopping it, errors in words, figures that move."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from contrast import CONTRAST
from fake_server import FakeServer, Reply, live
from hash_model import HashModel
from torch import Tensor

from whet.models.step import StepBatch
from whet.network import bind
from whet.server.engine import Engine
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Page = Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
_FLAGS += ("--disable-component-update", "--disable-sync")
# Nobody is there to read a countdown.
_FASTER = "const wait = setTimeout; window.setTimeout = (then, ms) => wait(then, ms / 5);"
# The browser itself writes a line for each answer of 400 or more and for each connection that breaks.
_EXPECTED = ("ERR_CONNECTION", "ERR_EMPTY", "ERR_CONTENT_LENGTH", "Failed to load resource")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = os.environ.get("WHET_CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(_BROWSERS)} on the path: install Debian's chromium, or set WHET_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """A page that fails the test when its scripts do, or when it asks for anything but its own server."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script(_FASTER)
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(10_000)
    yield page
    context.close()
    assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))] == []
    assert [error for error in errors if not any(known in error for known in _EXPECTED)] == []


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def answer(page: Page, text: str) -> None:
    """Wait until the latest answer reads so."""
    page.wait_for_function(
        "text => [...document.querySelectorAll('.answer .text')].at(-1)?.textContent === text", arg=text
    )


def figures(page: Page, text: str) -> str:
    found = page.locator(".answer .figures", has_text=text).last
    found.wait_for()
    return str(found.inner_text())


def wait_for_tile(page: Page, label: str, text: str) -> None:
    page.locator(f'.tile[data-label="{label}"]', has_text=text).wait_for()


def test_an_answer_streams_in_pieces_and_the_next_one_knows_the_first(page: Page, server: FakeServer) -> None:
    server.replies.append(Reply(("Grüße ", "<b>you</b> ", "😀"), held=True))
    page.goto(server.url)
    wait_for_tile(page, "Running", "3")
    say(page, "hello\n<i>world</i>")
    page.locator(".answer[aria-busy=true]").wait_for()
    for text in ("Grüße ", "Grüße <b>you</b> ", "Grüße <b>you</b> 😀"):
        server.let_go()
        answer(page, text)
    said = figures(page, "first after")
    assert said.startswith("6 tokens · ")
    assert "tokens/s" in said
    assert page.locator(".turn b, .turn i").count() == 0  # text, never markup
    path, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["stream"], body["temperature"], body["max_tokens"]) == ("docs-gpt", True, 0.7, 256)
    assert "seed" not in body
    page.locator("#settings summary").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("9")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("System text").fill("be brief")
    server.replies.append(Reply(("Yes",), finish="length"))
    say(page, "and?")
    assert "cut off at the limit" in figures(page, "2 tokens")
    body = server.asked[1][1]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0, 9, 7)
    assert [(m["role"], m["content"]) for m in body["messages"]] == [
        ("system", "be brief"), ("user", "hello\n<i>world</i>"), ("assistant", "Grüße <b>you</b> 😀"), ("user", "and?"),
    ]  # fmt: skip
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    say(page, "afresh")
    answer(page, "Hello there.")
    assert len(server.asked[2][1]["messages"]) == 2


def test_events_are_read_wherever_they_are_cut(page: Page, server: FakeServer) -> None:
    sent = ": ping\n\ndata: Grüße 😀\r\n\r\nevent: x\ndata:one\ndata:  two\n\n\ndata: [DONE]\n\ndata: cut off"
    page.goto(server.url)
    read = page.evaluate(_READ_EVENTS, list(sent.encode()))
    assert read == [["Grüße 😀", "one\n two", "[DONE]"]] * len(sent.encode())


# The events of bytes that come in two chunks, for each place to cut them; cut at 0, they come one by one.
_READ_EVENTS = """async (bytes) => {
  const { events } = await import("/static/stream.js");
  const all = [];
  for (let cut = 0; cut < bytes.length; cut++) {
    const chunks = cut ? [bytes.slice(0, cut), bytes.slice(cut)] : bytes.map((byte) => [byte]);
    const body = new ReadableStream({
      start(out) {
        for (const chunk of chunks) out.enqueue(new Uint8Array(chunk));
        out.close();
      },
    });
    all.push(await Array.fromAsync(events(body)));
  }
  return all;
}"""


def test_who_reads_further_up_is_left_there(page: Page, server: FakeServer) -> None:
    server.replies.append(Reply(("line\n" * 100, "more\n" * 100), held=True))
    page.goto(server.url)
    say(page, "hello")
    server.let_go()
    at_end = "(log) => log.scrollTop > 0 && log.scrollHeight - log.scrollTop - log.clientHeight < 2"
    page.wait_for_function(at_end, arg=page.query_selector("#log"))
    page.locator("#log").focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelector('#log').scrollTop === 0")
    server.let_go()
    figures(page, "4 tokens")
    assert page.evaluate("document.querySelector('#log').scrollTop") == 0


def test_stop_ends_the_request(page: Page, server: FakeServer) -> None:
    server.replies.append(Reply(("a ", "long "), endless=True))
    page.goto(server.url)
    say(page, "go on for ever")
    answer(page, "a long ")
    page.get_by_role("button", name="Stop").click()
    assert server.client_gone.wait(10)
    assert figures(page, "stopped").startswith("at least 2 tokens")
    assert page.get_by_role("button", name="Send").is_visible()
    assert page.evaluate("document.activeElement.id") == "prompt"  # a button that is gone keeps no keyboard
    say(page, "and now?")
    answer(page, "Hello there.")
    assert [m["content"] for m in server.asked[1][1]["messages"]] == ["go on for ever", "a long ", "and now?"]


def test_a_base_model_goes_on_with_the_text(page: Page, server: FakeServer) -> None:
    page.goto(server.url)
    page.get_by_role("radio", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_label("Text to go on with").fill("  Once ")
    page.get_by_label("Text to go on with").press("Enter")
    answer(page, "Hello there.")
    path, body = server.asked[0]
    assert (path, body["prompt"]) == ("/v1/completions", "  Once ")


def test_a_key_is_asked_for_and_kept_for_the_tab_alone(page: Page, server: FakeServer) -> None:
    server.key = "secret"
    page.goto(server.url)
    say(page, "hello")
    page.get_by_role("alert").get_by_text("wants an API key").wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("secret")
    page.get_by_role("button", name="Try again").click()
    answer(page, "Hello there.")
    assert page.locator(".failure").count() == 0
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 1, ""]
    page.reload()
    say(page, "again")
    answer(page, "Hello there.")


def test_a_full_server_is_asked_again(page: Page, server: FakeServer) -> None:
    server.replies.append(Reply(status=429, message="256 requests wait", retry_after="1"))
    page.goto(server.url)
    say(page, "hello")
    answer(page, "Hello there.")
    server.replies.append(Reply(status=429, message="256 requests wait.", retry_after="50"))
    say(page, "hello")
    said = figures(page, "The server is full")
    assert re.search(r"It says: 256 requests wait. Asking again in \d+ s.", said)
    page.get_by_role("button", name="Stop").click()
    figures(page, "stopped")
    assert len(server.asked) == 3


def test_errors_are_said_in_words(page: Page, server: FakeServer) -> None:
    cases = [
        (Reply(status=400, message="temperature is -1: it must be 0 or more"), "it must be 0 or more", []),
        (Reply(status=503, message="draining"), "takes no requests now", []),
        (Reply(status=500), "answered 500", []),
        (Reply(("half an",), breaks=True), "connection broke", ["half an"]),
        (Reply(("half an",), error_at_end="out of blocks"), "out of blocks", ["half an"]),
    ]
    page.goto(server.url)
    for reply, words, kept in cases:
        server.replies.append(reply)
        say(page, "hello")
        if reply.breaks:
            answer(page, reply.pieces[0])
            server.let_go()
        page.locator(".failure", has_text=words).wait_for()
        assert page.locator(".answer .text:visible").all_inner_texts() == kept, words
        page.get_by_role("button", name="Try again").click()
        answer(page, "Hello there.")
        assert page.locator(".failure").count() == 0, words
        assert [m["content"] for m in server.asked[-1][1]["messages"]] == ["hello"], words
        page.get_by_role("button", name="New chat").click()


def test_wrong_fields_are_not_sent(page: Page, server: FakeServer) -> None:
    page.goto(server.url)
    page.locator("#settings summary").click()
    page.get_by_label("Max tokens").fill("0")
    page.locator("#settings summary").click()
    say(page, "hello")
    page.get_by_label("Max tokens").wait_for()  # open again, to show which one
    assert server.asked == []
    assert page.get_by_label("Message").input_value() == "hello"


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


class SlowModel(HashModel):
    """Leaves the page the time to stop it."""

    def step(self, batch: StepBatch) -> Tensor:
        time.sleep(0.005)
        return super().step(batch)


def test_it_speaks_with_the_server_itself(page: Page) -> None:
    tokenizer = Tokenizer(WEIGHTS / "docs-gpt")
    tokenizer.eos_ids = frozenset()
    model = SlowModel(vocab_size=2048, max_model_len=4096, block_size=16)
    settings = Settings(served_names=("hash",), api_keys=("secret",), shutdown_timeout_s=0.5)
    with Engine(model, tokenizer=tokenizer) as engine:
        server = HttpServer(engine, settings, bind("127.0.0.1", 0))
        server.start()
        try:
            page.goto(server.url)
            page.locator("#notice", has_text="wants an API key").wait_for()
            assert page.locator("#status").inner_text() == "key wanted"
            page.locator("#settings summary").click()
            page.get_by_label("API key").fill("secret")
            page.get_by_label("Temperature").fill("0")
            page.get_by_label("Max tokens").fill("5")
            say(page, "hello")
            assert figures(page, "first after").startswith("5 tokens · ")
            given = engine.generate(
                tokenizer.encode(tokenizer.chat([{"role": "user", "content": "hello"}]), False), _FIVE
            )
            assert page.locator(".answer .text").text_content() == given.text
            wait_for_tile(page, "Requests ended", "2 length")
            assert page.locator("h1").inner_text() == "hash"
            page.get_by_label("Max tokens").fill("")
            say(page, "go on")
            wait_for_tile(page, "Running", "1of 64")
            page.get_by_role("button", name="Stop").click()
            wait_for_tile(page, "Requests ended", "1 abort")
            assert engine.stats().num_running == 0
            page.get_by_label("Temperature").fill("2")
            page.get_by_label("Max tokens").fill("5000")
            say(page, "too much")
            page.locator(".failure", has_text="The model takes 4096 tokens").wait_for()
            page.locator(".failure", has_text="to be generated. Begin anew, or ask for fewer tokens").wait_for()
        finally:
            server.stop()


_FIVE = SamplingParams(temperature=0, max_tokens=5)


def test_nothing_is_cut_off_and_text_can_be_read(page: Page, server: FakeServer) -> None:
    server.replies.extend([Reply(("word " * 300, "x" * 500)), Reply(status=400, message="no")])
    page.goto(server.url)
    page.locator(".plot canvas").first.wait_for()
    page.locator("#settings summary").click()
    say(page, "hello " * 50)
    figures(page, "first after")
    say(page, "hello")
    page.locator(".failure").wait_for()
    assert page.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight", page.query_selector("#log")) < 2
    for width in (1600, 1280, 900, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#log").bounding_box()["height"] >= 80
        bottom = page.locator("#hint").bounding_box()
        assert bottom["y"] + bottom["height"] <= 800  # all of the composer is in view
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for selector in _TEXTS:
                assert page.evaluate(CONTRAST, selector) >= 4.5, (selector, scheme, width)


_TEXTS = (
    ".tile dt", ".tile .value", ".tile .detail", ".legend b", "#status", "#send", ".modes label", ".figures", ".asked",
    ".failure p", "#chosen", "#hint", ".answer h2", "summary", ".fields label",
)  # fmt: skip
