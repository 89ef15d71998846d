"""The page of a drift test: it opens offline in a browser, asks for nothing, and shows what the report holds."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import browsing
from whet.errors import MissingExtra
from whet.streamer.drift import page
from whet.streamer.drift.meter import DriftMeter
from whet.streamer.drift.report import DriftReport, report


@pytest.fixture(scope="module")
def drifting(panning: list[np.ndarray], judged: Callable[..., DriftReport]) -> DriftReport:
    outputs = (np.rint(frame * 1.005**i).clip(0, 255).astype(np.uint8) for i, frame in enumerate(panning))
    return judged(outputs, panning)


def test_the_page_opens_in_a_browser_and_asks_for_nothing(drifting: DriftReport, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    path = tmp_path / "drift.html"
    page.save(drifting, path)
    with (
        browsing.launched() as browser,
        browsing.watched(browser, height=900, addresses=(path.as_uri(), "data:"), expected=[]) as shown,
    ):
        shown.goto(path.as_uri())
        assert shown.locator(".badge").inner_text() == "drift"
        assert shown.locator(".lead").inner_text() == drifting.sentence
        assert shown.locator(".strip img").count() == 2 * len(drifting.series.thumbnails)
        assert shown.evaluate("[...document.images].every(image => image.naturalWidth === 32)")
        assert shown.locator(".chart svg").count() == shown.locator("tbody tr").count() == 7
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_film_strip_shows_the_frames_themselves(drifting: DriftReport) -> None:
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="Output at frame (\d+)"', page.render(drifting))
    assert [int(index) for _, index in found] == [one.index for one in drifting.series.thumbnails]
    for (data, _), one in zip(found, drifting.series.thumbnails, strict=True):
        assert np.array_equal(np.asarray(images.open(io.BytesIO(base64.b64decode(data)))), one.output)


def test_names_from_outside_are_escaped_and_few_frames_have_a_page(panning: list[np.ndarray]) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    meter = DriftMeter(5)
    for frame in panning[:5]:
        meter.add(frame, frame)
    shown = page.render(report(meter.series(), subject="<b>&", source="<i>.mp4"))
    assert "<b>" not in shown and "<i>" not in shown and "&lt;b&gt;&amp;" in shown
    assert "There are 5 frames" in shown


def test_without_pillow_the_page_says_what_to_install(drifting: DriftReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"torch-whet\[stream\]"):
        page.render(drifting)
