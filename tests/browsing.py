"""A browser for the tests of pages."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

Page = Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
_FLAGS += ("--disable-component-update", "--disable-sync")


@contextmanager
def launched(*flags: str) -> Iterator[Any]:
    """Start Debian's chromium, with more flags if some are given, or skip the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("WHET_CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(_BROWSERS)} on the path: install Debian's chromium, or set WHET_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*_FLAGS, *flags])
        yield browser
        browser.close()


@contextmanager
def watched(
    browser: Any, *, height: int, addresses: tuple[str, ...], expected: Sequence[str], script: str = ""
) -> Iterator[Page]:
    """Open a page that fails the test when its scripts do, or when it asks for anything but some addresses.

    Args:
        browser: The browser.
        height: The window's height in pixels. It is 1,280 wide.
        addresses: How the addresses begin that the page may ask.
        expected: What the browser's own lines on the console hold, which are no fault of the page.
        script: Runs before the page's own scripts.
    """
    context = browser.new_context(viewport={"width": 1280, "height": height})
    page = context.new_page()
    if script:
        page.add_init_script(script)
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(10_000)
    yield page
    context.close()
    assert [url for url in asked if not url.startswith(addresses)] == []
    assert [error for error in errors if not any(known in error for known in expected)] == []
