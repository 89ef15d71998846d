"""The chat on the page in a real browser: text that streams, stopping it, errors in words."""

import re
from typing import Any

from fake_server import FakeServer, Reply
from talking import answer, figures, say, wait_for_tile

Page = Any


def test_an_answer_streams_in_pieces_and_the_next_one_knows_the_first(page: Page, server: FakeServer) -> None:
    server.replies.append(Reply(("Grüße ", "<b>you</b> ", "😀"), held=True))
    page.goto(server.url)
    wait_for_tile(page, "Running", "3")
    say(page, "hello\n<i>world</i>")
    page.locator(".answer[aria-busy=true]").wait_for()
    for text in ("Grüße", "Grüße <b>you</b>", "Grüße <b>you</b> 😀"):
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


def test_the_page_of_a_demo_model_says_that_it_is_one(page: Page, server: FakeServer) -> None:
    page.goto(server.url)
    wait_for_tile(page, "Running", "3")
    assert page.locator("#demo").is_visible()
    assert "tiny demo model" in page.locator("#demo").inner_text()


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
    answer(page, "a long")
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
