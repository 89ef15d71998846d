"""Check that all pages share one look: the same head, and no colours or fonts of their own."""

import re
from pathlib import Path

import pytest

import whet
import whet_audit
from whet.ui import page_style

ROOT = Path(whet.__file__).parent
AUDIT = Path(whet_audit.__file__).parent
STYLES = [path for path in ROOT.rglob("*.css") if path.parent.name not in ("page_style", "charts")]
STYLES.append(AUDIT / "formats" / "report.css")
TEMPLATES = [*ROOT.rglob("*.html"), *ROOT.rglob("*.html.j2"), *AUDIT.rglob("*.html.j2")]
PAGES = [path for path in TEMPLATES if "_parts" not in path.name]
TOKENS = set(re.findall(r"(--[\w-]+):", page_style.read(page_style.TOKENS)))


COMMANDS = {
    "tuner": "tune", "whet_audit": "audit", "monitor": "monitor", "server": "serve", "streamer": "stream",
    "planner": "plan",
}  # fmt: skip


def room(path: Path) -> str:
    """Return the room of whet that a file lies in, as in COMMANDS."""
    return next((part for part in path.parts if part in COMMANDS), "none")


def test_all_pages_are_found() -> None:
    assert set(map(room, STYLES)) == set(COMMANDS) == set(map(room, PAGES))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{room(path)}-{path.name}")
def test_a_page_begins_with_the_same_head(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    for parts in re.findall(r'from "(\w+_parts\.html\.j2)"', page):  # the head and the foot that several pages share
        page += next(other for other in TEMPLATES if other.name == parts).read_text(encoding="utf-8")
    name = COMMANDS[room(path)]
    assert re.search(rf'class="masthead"><span class="wordmark">whet <span class="command">{name}</span></span>', page)
    assert page.count("<h1") == 1 and "<footer>" in page


@pytest.mark.parametrize("path", STYLES, ids=room)
def test_a_page_has_no_colours_or_fonts_of_its_own(path: Path) -> None:
    style = path.read_text(encoding="utf-8")
    assert set(re.findall(r"var\((--[\w-]+)", style)) <= TOKENS | {"--columns", "--few-columns"}  # numbers of tiles
    assert not re.search(r"#[0-9a-f]{3,8}\b|rgb|hsl|url\(|@import|--[\w-]+:", style)
    assert not re.search(r"font-family: (?!var|inherit)|font: (?!inherit|var)", style)


def test_scripts_ask_for_tokens_that_there_are() -> None:
    asked = [name for path in ROOT.rglob("*.js") for name in re.findall(r'css\("(--[\w-]+)"\)', path.read_text())]
    assert asked and set(asked) <= TOKENS


def test_a_page_that_contains_its_style_has_its_own_last() -> None:
    style = page_style.style("footer { color: var(--ink); }")
    assert style.index(":root") < style.index(".masthead") < style.index("footer { color: var(--ink); }")
    assert "</" not in style  # it stands in a <style> element
