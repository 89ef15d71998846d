"""What a reader does on the chat page, and waits for."""

from typing import Any

Page = Any


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
