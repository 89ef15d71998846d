"""The page of a server with tuned models in a real browser: their list, with and without a language model."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_server import FakeServer
from talking import wait_for_tile

Page = Any


def described(name: str, shape: list[int]) -> dict[str, Any]:
    return {
        "name": name,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": shape}, {"name": "m", "datatype": "BOOL", "shape": [2]}],
        "outputs": [{"name": "output_0", "datatype": "FP32", "shape": [-1, 10]}],
    }


@contextmanager
def serving(*, has_chat: bool) -> Iterator[FakeServer]:
    tuned = {"digits": described("digits", [-1, 2]), "large": described("large", [-1, 3, 32, 32])}
    server = FakeServer(tuned=tuned, has_chat=has_chat)
    try:
        yield server
    finally:
        server.close()


def test_without_a_language_model_there_is_no_chat(page: Page) -> None:
    with serving(has_chat=False) as server:
        page.goto(server.url)
        page.locator("#status", has_text="serving").wait_for()
        assert "good" in page.locator("#status").get_attribute("class")
        assert page.locator("h1").inner_text() == "digits, large"
        assert page.title() == "digits, large · whet serve"
        assert page.locator("#notice").is_hidden()
        assert page.locator("#chat").is_hidden()
        assert page.locator("#no-chat").inner_text() == "This server has no language model."
        card = page.locator('[data-model="digits"]')
        card.locator("p", has_text="3 samples answered").wait_for()
        text = card.inner_text()
        assert "x FP32 [any × 2]" in text and "m BOOL [2]" in text and "output_0 FP32 [any × 10]" in text
        assert card.get_by_role("button", name="Copy").is_visible()
        for width in (1300, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("model", "size"), [("digits", 2), ("large", 3 * 32 * 32)])
def test_the_command_sends_a_tensor_of_the_right_size(page: Page, model: str, size: int) -> None:
    with serving(has_chat=False) as server:
        page.goto(server.url)
        page.locator(f'[data-model="{model}"] pre').wait_for()
        line = page.locator(f'[data-model="{model}"] pre').inner_text()
        assert f"{server.url}v2/models/{model}/infer" in line
        echoed = f'curl() {{ for last; do :; done; case $last in @-) cat;; *) echo "$last";; esac; }}; {line}'
        sent = json.loads(subprocess.run(["sh", "-c", echoed], capture_output=True, check=True, text=True).stdout)
    assert [len(one["data"]) for one in sent["inputs"]] == [size, 2]
    assert sent["inputs"][1]["data"] == [True, True]
    assert sent["inputs"][0]["shape"][0] == 1


def test_with_both_kinds_the_list_stands_beside_the_chat(page: Page) -> None:
    with serving(has_chat=True) as server:
        page.goto(server.url)
        wait_for_tile(page, "Running", "3")
        assert page.locator("h1").inner_text() == "docs-gpt"
        assert page.locator("#chat").is_visible()
        assert page.locator("#no-chat").is_hidden()
        assert page.locator("[data-model]").count() == 2
