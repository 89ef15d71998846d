"""Can the chat page be read and reached: at every width, in both schemes, with text that nobody planned for?"""

from typing import Any

from contrast import CONTRAST
from fake_server import FakeServer, Reply
from talking import figures, say

Page = Any


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
    for width in (1600, 1280, 900, 400, 360):
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
    ".tile dt", ".tile .value", ".tile .detail", ".legend b", "#status", "#send", ".choices label", ".figures",
    ".asked", ".failure p", "#chosen", "#hint", ".answer h2", "summary", ".fields label",
)  # fmt: skip
