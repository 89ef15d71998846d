"""A browser for the tests of the chat page, and the server that the page asks."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import FakeServer

from browsing import Page, launched, watched

# Nobody is there to read a countdown.
_FASTER = "const wait = setTimeout; window.setTimeout = (then, ms) => wait(then, ms / 5);"
# The browser itself writes a line for each answer of 400 or more and for each connection that breaks.
_EXPECTED = ("ERR_CONNECTION", "ERR_EMPTY", "ERR_CONTENT_LENGTH", "Failed to load resource")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    with watched(
        browser, height=800, addresses=("http://127.0.0.1:", "data:"), expected=_EXPECTED, script=_FASTER
    ) as page:
        yield page


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()
