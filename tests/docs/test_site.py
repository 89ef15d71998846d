"""The site has a page for every command, technique and rule, and its navigation names every page."""

import subprocess
import sys
from pathlib import Path

import pytest

import links
import whet
from whet.auditor.rules import RULES
from whet.cli import COMMANDS
from whet.techniques import TABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MANUALS = {"serve": "serving"}  # a command whose manual has another name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, in strict mode: a page that the navigation leaves out, or a broken link, ends it."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_manual(command: str) -> None:
    page = DOCS / f"{MANUALS.get(command, command)}.md"
    assert f"whet {command}" in page.read_text(encoding="utf-8")


def test_every_technique_and_every_rule_has_a_page(site: Path) -> None:
    for name, technique in TABLE.items():
        page = (site / "techniques" / f"{name}.html").read_text(encoding="utf-8")
        assert f'<h1 id="{name}">' in page
        assert "When it hurts" in page
        assert technique.stage.value in page
    for code, rule in RULES.items():
        assert rule.NAME in (site / "rules" / f"{code}.html").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    same = {"Workload": "InferenceWorkload"}
    names = [same.get(name, name) for name in whet.__all__ if name != "__version__"]
    assert [name for name in names if f'id="whet.{name}"' not in reference] == []


def test_no_page_is_missing_from_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    tops = {page.stem for page in DOCS.glob("*.md")}
    pages = [str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "404.html"]
    assert tops <= {Path(page).stem for page in pages}
    assert [page for page in pages if f'href="{page}"' not in home] == []


def test_the_site_needs_no_network(site: Path) -> None:
    assert links.foreign_resources(site) == []
