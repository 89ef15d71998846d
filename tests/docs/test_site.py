"""The site has a page for every command, technique and rule, and its navigation names every page."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import links
import whet
from whet.cli import COMMANDS
from whet.techniques import TABLE
from whet_audit.rules import RULES

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


def test_pages_for_those_who_work_on_whet_are_apart_and_rank_below(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    names = ("contributing.html", "structure.html", "log.html", "mutants.html")
    apart = home[home.rindex("Working on whet") :]
    assert all(f'href="{name}"' in apart for name in names)
    entries = search_entries(site)
    assert all(entry.get("boost") == 0.3 for entry in entries if entry["location"].startswith(names))
    assert not any("boost" in entry for entry in entries if entry["location"].startswith("tune.html"))


@pytest.mark.parametrize(
    "word", ["quantization", "quantized", "optimizer", "artifact", "tokenizer", "behavior", "color", "synchronization"]
)
def test_the_search_finds_american_spelling(site: Path, word: str) -> None:
    found = [entry["location"] for entry in search_entries(site) if word in f"{entry['title']} {entry['text']}".lower()]
    assert any(not location.startswith(("log.html", "structure.html")) for location in found)


def test_words_are_spelt_as_americans_do() -> None:
    spelling = spelling_module()
    british = "quantisation optimisers tokenised artefacts behaviour labelled analysed catalogue centre normalising"
    american = "quantization optimizers tokenized artifacts behavior labeled analyzed catalog center normalizing"
    assert [spelling.american(word) for word in british.split()] == american.split()
    same = (
        "precise otherwise noise raised wiser exercise promised comprises our four hour analysis model promising rise"
    )
    assert [spelling.american(word) for word in same.split()] == same.split()
    assert spelling.added_words("The optimiser's artefact, an optimizer") == ["artifact"]


def test_every_word_in_ise_is_known_to_be_spelt_so_or_has_its_american_form() -> None:
    """A word that also occurs with -isation or -iser has an American form in all its endings."""
    spelling = spelling_module()
    words = set(
        re.findall(r"[a-z]+", " ".join(page.read_text(encoding="utf-8").lower() for page in DOCS.rglob("*.md")))
    )
    stems = {word.removesuffix("ation") for word in words if word.endswith("isation")}
    assert "quantis" in stems
    forms = {stem + ending for stem in stems for ending in ("e", "ed", "es", "ing")} & words
    assert sorted(word for word in forms if spelling.american(word) == word) == []


def search_entries(site: Path) -> list[dict[str, Any]]:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return list(index["docs"])


def spelling_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spelling", DOCS / "spelling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
