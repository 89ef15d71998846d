"""A browser for the tests of the chat page, and the server that the page asks."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import FakeServer

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
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
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
