"""The page in a real browser with a made-up camera: frames that change, figures, changes, and what goes wrong."""

import re
import time

import pytest
from page_servers import Negative, guided, opened, serving
from stream_fakes import Delayed

from browsing import launched, watched
from whet.models.diffusion.guidance import Guidance
from whet.streamer.stream import StreamOptions

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
# The browser itself writes a line for each connection that breaks.
_EXPECTED = ("ERR_CONNECTION", "WebSocket connection to")


_REFUSAL = "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', '{}'))"


@pytest.fixture(scope="module")
def browser():
    with launched(*_CAMERA) as browser:
        yield browser


@pytest.fixture
def page(browser):
    with watched(browser, height=900, addresses=("http://127.0.0.1:", "data:", "about:"), expected=_EXPECTED) as page:
        page.set_default_timeout(30_000)
        yield page


def start(page, server, source="camera"):
    page.goto(server.url)
    page.locator(f"[name=source][value={source}]").check(force=True)
    page.locator("#start").click()


def status(page, word):
    page.locator("#status", has_text=word).wait_for()


def notice(page, words):
    page.locator("#notice:visible", has_text=words).wait_for()


def wait_for(page, is_so):
    """Wait until something holds. The page's policy lets the browser evaluate no text that would wait there."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, page.inner_text("body")
        page.wait_for_timeout(20)


def shown_beyond(page, number):
    wait_for(page, lambda: shown(page) > number)


def shown(page):
    return int(page.evaluate("document.body.dataset.shown || 0"))


def colour(page, canvas):
    """The mean colour at the left edge of a picture, where the made-up camera shows nothing but its background."""
    return page.evaluate(
        """(id) => {
            const canvas = document.getElementById(id);
            const { data } = canvas.getContext("2d").getImageData(2, Math.floor(canvas.height * 0.75), 3, 2);
            const mean = (values) => values.reduce((a, b) => a + b) / values.length;
            return [0, 1, 2].map((c) => mean([...data].filter((_, i) => i % 4 === c)));
        }""",
        canvas,
    )


def pixels(page):
    return page.evaluate("document.getElementById('output').toDataURL()")


def test_answers_change_and_figures_are_updated(page):
    with serving(options=StreamOptions(budget_s=5.0)) as server:
        page.goto(server.url)
        assert page.locator("#start").is_visible() and page.locator("#stop").is_hidden()
        start(page, server)
        status(page, "running")
        assert page.locator("h1").inner_text() == "a <model>"  # text, never markup
        seen = set()
        for _ in range(4):
            shown_beyond(page, shown(page) + 3)
            seen.add(pixels(page))
        assert len(seen) == 4
        output = page.locator("#output")
        assert (output.get_attribute("width"), output.get_attribute("height")) == ("24", "16")
        negative = [255 - value for value in colour(page, "input")]
        assert colour(page, "output") == pytest.approx(negative, abs=12)
        page.locator('.tile[data-label^="Final frames"] .value', has_text=re.compile(r"\d")).wait_for()
        page.locator('.tile[data-label^="Latency"] .detail', has_text="P99").wait_for()
        page.locator('.tile[data-label^="Budget"] .detail', has_text="0 dropped").wait_for()
        page.locator('.tile[data-label^="Level"]', has_text="All frames computed").wait_for()
        page.locator("#latency .legend", has_text="P50").wait_for()
        assert page.locator("#latency .plot canvas").count() == 1
        assert page.locator("#controls").is_hidden()  # this model takes neither text nor guidance
        arrived = page.locator("#frames dt:text-is('arrived') + dd")
        before = int(arrived.inner_text())
        wait_for(page, lambda: int(arrived.inner_text()) > before)
        for measure in ("colours", "contrast", "sharpness"):
            page.locator(f'#drift dd[data-measure^="{measure}"]', has_text=re.compile(r"\dx? → \d")).wait_for()
        for width in (1280, 800, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#stop").click()
        status(page, "ended")
        page.locator("#start:visible").wait_for()


def test_a_rolling_batch_streams_too(page):
    with serving(Delayed(4)) as server:
        start(page, server)
        shown_beyond(page, 5)
        page.locator('.tile[data-label^="Level"]', has_text="4 steps").wait_for()


def test_a_server_that_was_killed_and_started_again_is_found(page):
    with serving() as server:
        start(page, server)
        shown_beyond(page, 2)
        port = server.port
    status(page, "no connection")
    notice(page, "The server does not answer")
    before = shown(page)
    with serving(port=port):
        status(page, "running")
        shown_beyond(page, before + 3)
        assert page.locator("#notice").is_hidden()


def test_prompt_and_guidance_change_while_it_runs(page):
    step = Negative()
    options = StreamOptions(guidance=Guidance("self", 1.5), prompt="a dog")
    with serving(model=guided(step), options=options) as server:
        start(page, server)
        shown_beyond(page, 2)
        assert page.locator("#prompt").input_value() == "a dog"
        assert page.locator("#kinds input:checked").get_attribute("value") == "self"
        page.locator("#prompt").fill("a <b>cat</b>")
        page.locator("#prompt").press("Enter")
        page.locator("#settings-said", has_text="a <b>cat</b>").wait_for()
        page.locator("#prompt").fill("bad")
        page.locator("#prompt").press("Enter")
        page.locator("#settings-said", has_text="Not changed: this prompt is bad").wait_for()
        page.locator("#kinds input[value=onetime]").check(force=True)
        page.locator("#weight").fill("2.5")
        page.locator("#guidance-form button").click()
        page.locator("#settings-said", has_text="onetime, weight 2.5").wait_for()
        assert step.asked == [("a <b>cat</b>", ""), Guidance("onetime", 2.5, 1.0)]
        page.locator("#kinds input[value=none]").check(force=True)
        assert page.locator("#delta-field").is_hidden()
        shown_beyond(page, shown(page) + 2)


def test_the_servers_own_source(page):
    with serving(source="synthetic:120") as server:
        start(page, server, "server")
        page.locator("#input-size", has_text="synthetic:120").wait_for()
        shown_beyond(page, 3)
        notice(page, "The source has come to its end")
        page.locator("#start").click()
        shown_beyond(page, shown(page) + 2)


def test_a_key_is_asked_for_and_kept_in_the_tab(page):
    with serving(api_keys=("secret",)) as server:
        start(page, server)
        notice(page, "asks for an API key")
        page.locator("#key").fill("wrong")
        page.locator("#start").click()
        notice(page, "none of its keys")
        page.locator("#key").fill("secret")
        page.locator("#start").click()
        shown_beyond(page, 2)
        start(page, server)  # the page is loaded again
        status(page, "running")
        assert "secret" not in page.url


def test_a_second_viewer_is_told_and_takes_over(page, browser):
    with serving() as server:
        start(page, server)
        shown_beyond(page, 2)
        with watched(browser, height=700, addresses=("http://127.0.0.1:", "data:"), expected=_EXPECTED) as other:
            other.set_default_timeout(30_000)
            start(other, server)
            notice(other, "somebody else is watching")
            page.locator("#stop").click()
            status(other, "running")
            shown_beyond(other, 2)


def test_frames_that_are_not_finite_and_a_model_that_fails_are_told(page):
    state = {"value": 0.0}

    def step(frame):
        if state["value"] is None:
            raise ValueError("out of order")
        return 1 - frame + state["value"]

    with serving(model=opened(step)) as server:
        start(page, server)
        shown_beyond(page, 2)
        state["value"] = float("nan")
        page.locator("#output-kind", has_text="not finite").wait_for()
        page.locator("#frames", has_text="not finite").wait_for()
        state["value"] = None
        notice(page, "out of order")
        status(page, "ended")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (_REFUSAL.format("NotAllowedError"), "may not use"),
        (_REFUSAL.format("NotFoundError"), "no camera"),
        ("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })", "https://"),
    ],
)
def test_a_camera_that_cannot_be_had(page, script, words):
    page.add_init_script(script)
    with serving() as server:
        start(page, server)
        notice(page, words)
        page.locator("#start:visible").wait_for()


def test_a_camera_that_goes_away(page):
    page.add_init_script(
        """const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        navigator.mediaDevices.getUserMedia = async (what) => (window.media = await ask(what));"""
    )
    with serving() as server:
        start(page, server)
        shown_beyond(page, 2)
        page.evaluate("media.getVideoTracks()[0].dispatchEvent(new Event('ended'))")
        notice(page, "The camera has stopped")
