"""The chat page with the server itself behind it."""

import time
from typing import Any

from hash_model import HashModel
from talking import figures, say, wait_for_tile
from torch import Tensor

from whet.models.step import StepBatch
from whet.server.engine import Engine
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer
from whet.ui.network import bind
from whet.workloads import WEIGHTS

Page = Any


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
            page.get_by_role("radio", name="Complete").check(force=True)
            page.get_by_label("Text to go on with").fill("hello")
            page.get_by_label("Text to go on with").press("Enter")
            assert figures(page, "first after").startswith("5 tokens · ")
            given = engine.generate(tokenizer.encode("hello"), _FIVE)
            assert page.locator(".answer .text").text_content() == given.text
            page.get_by_role("radio", name="Chat").check(force=True)
            say(page, "hello")
            page.locator(".answer .figures", has_text="5 tokens · ").nth(1).wait_for()
            wait_for_tile(page, "Requests ended", "3 length")
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
