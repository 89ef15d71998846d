"""Build the pages of the site that are not files of docs/: mkdocs calls these functions (see mkdocs.yml).

README.md, CONTRIBUTING.md and CHANGELOG.md become pages. Each technique and each rule gets a page from its docstring,
so that a card exists once, in the code. The search also finds American spelling.
"""

import importlib.util
import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from whet.techniques.catalogue import MeasuredRow, OptionCard, TechniqueCard, technique_cards
from whet_audit.card import Card
from whet_audit.run import cards

ROOT = Path(__file__).parents[1]
TOKENS = ROOT / "src" / "whet" / "look" / "tokens.css"  # the design tokens that whet's own pages use
WORKING_ON_WHET = frozenset({"changelog.md", "contributing.md", "structure.md", "log.md", "mutants.md"})
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
STAGES = {
    "structure": "Another graph, the same numbers",
    "precision": "Fewer bits",
    "layout": "Another order in memory",
    "backend": "A compiler or another runtime",
    "runtime": "How the process runs it",
}
TOPICS = {
    "SYN": "the CPU waits for the GPU",
    "MOV": "copies between host and device",
    "DAT": "what feeds the loop",
    "PRE": "precision",
    "CMP": "how it is computed",
    "MEM": "what is kept",
    "INF": "inference",
    "DST": "several GPUs",
}
_NAMED = re.compile(r"\[(?:docs/)?[\w/-]+\.md\]\(([\w/.-]+\.md)((?:#[\w-]+)?\))")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, and whet's design tokens before the style sheet."""
    _extend(config.nav, "techniques.md", _technique_nav())
    _extend(config.nav, "rules.md", _rule_nav())
    if TOKENS.is_file():
        config.extra_css.insert(0, "stylesheets/tokens.css")
    config.watch.extend(str(ROOT / name) for name in ROOT_PAGES)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here to the files of the site."""
    made = {page: _of_root((ROOT / name).read_text(encoding="utf-8")) for name, page in ROOT_PAGES.items()}
    made |= {technique_page(card.name): technique_text(card) for card in technique_cards()}
    made |= {rule_page(card): rule_text(card) for card in cards().values()}
    if TOKENS.is_file():
        made["stylesheets/tokens.css"] = TOKENS.read_text(encoding="utf-8")
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the lists of techniques and rules; let links lead to pages of the site, and carry their titles."""
    if page.file.src_uri in WORKING_ON_WHET:
        page.meta.setdefault("search", {"boost": 0.3})
    markdown = _NAMED.sub(lambda found: _titled(found, page, files), markdown)
    if page.file.src_uri == "techniques.md":
        return f"{markdown}\n\n{_technique_list()}"
    if page.file.src_uri == "rules.md":
        return f"{markdown}\n\n{_rule_list()}"
    up = "../" * (page.file.src_uri.count("/") + 1)
    for name, target in ROOT_PAGES.items():
        markdown = markdown.replace(f"]({up}{name}", f"]({up.removesuffix('../')}{target}")
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Add the American spelling of its words to each entry of the search."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    found = json.loads(index.read_text(encoding="utf-8"))
    for entry in found["docs"]:
        if words := _spelling().added_words(f"{entry['title']} {entry['text']}"):
            entry["text"] += f"<p>Also spelt {', '.join(words)}.</p>"
    index.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


@lru_cache(maxsize=1)
def _spelling() -> ModuleType:
    """Load spelling.py, which lies beside this file and in no package."""
    spec = importlib.util.spec_from_file_location("spelling", Path(__file__).with_name("spelling.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _titled(found: re.Match[str], page: Page, files: Files) -> str:
    """Return a link whose text was its file's name with the title of that page as its text."""
    target = files.get_file_from_path(
        posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found[1]))
    )
    title = re.search(r"^# (.+)$", target.content_string, re.MULTILINE) if target is not None else None
    return f"[{title[1]}]({found[1]}{found[2]}" if title is not None else found[0]


def technique_page(name: str) -> str:
    """Return the place of a technique's page in the site's sources."""
    return f"techniques/{name}.md"


def rule_page(card: Card) -> str:
    """Return the place of a rule's page in the site's sources."""
    return f"rules/{card.code}.md"


def technique_text(card: TechniqueCard) -> str:
    """Return the page of a technique: its card, its options and what was measured."""
    parts = [f"# {card.name}", card.title, f"Stage: {card.stage} ({STAGES[card.stage].lower()})."]
    for name, text in card.sections.items():
        parts += [f"## {name}", text]
    parts += ["## Options", *_options(card.options, card.remarks)]
    parts += ["## Measured", *_measured(card.measured)]
    parts += [
        "## On your machine",
        f"```sh\nwhet techniques {card.name}\n```",
        "says whether it can run there. `whet tune` says whether it applies to a model, and what it brings.",
    ]
    return "\n\n".join(parts) + "\n"


def rule_text(card: Card) -> str:
    """Return the page of an audit rule: its card."""
    parts = [f"# {card.code}: {card.name}", card.title, f"Priority: {card.priority}."]
    if card.is_preview:
        parts.append(f"In preview: off without `--preview` or `--select {card.code}`.")
    for name, text in card.sections.items():
        parts += [f"## {name}", f"```python\n{text}\n```" if name in ("Example", "Instead") else text]
    parts += ["## Silence it", f'`# noqa: {card.code}` on the line, or `ignore = ["{card.code}"]` in the settings.']
    return "\n\n".join(parts) + "\n"


def _options(options: Sequence[OptionCard], remarks: str) -> list[str]:
    if not options:
        return ["It has no options."]
    rows = [[f"`{o.name}`", _code(o.default), _codes(o.tried) or "the default only", o.text] for o in options]
    headings = ["option", "default", "`whet tune` tries", "what it does"]
    width = 4 if any(option.text for option in options) else 3
    return [_table(headings[:width], [row[:width] for row in rows]), remarks]


def _measured(rows: Sequence[MeasuredRow]) -> list[str]:
    parts = [] if any(row.is_alone for row in rows) else ["It has not been measured on its own yet."]
    for alone, said in ((True, "By itself:"), (False, "In a recipe with other techniques:")):
        chosen = [row for row in rows if row.is_alone == alone]
        if chosen:
            parts += [said, _table(["model", "speedup (95%)", "quality", "machine", "recipe"], map(_row, chosen))]
    if rows:
        commands = "; ".join(f"`{command}`" for command in dict.fromkeys(row.command for row in rows))
        parts.append(
            f"The figures are from {commands}; a speedup is the original's time over the recipe's. More in "
            "[results](../results.md); why another machine shows others: [machines](../machines.md)."
        )
    return parts


def _row(row: MeasuredRow) -> list[str]:
    interval = "screening" if row.ci95 is None else f"{row.ci95[0]:.2f}–{row.ci95[1]:.2f}"
    return [row.model, f"**{row.speedup:.2f}x** ({interval})", row.quality, row.chip, row.recipe]


def _technique_list() -> str:
    parts = []
    for stage, members in _technique_groups().items():
        rows = [[f"[{card.name}](techniques/{card.name}.md)", card.title] for card in members]
        parts += [f"## {stage.capitalize()}", f"{STAGES[stage]}.", _table(["technique", "what it does"], rows)]
    return "\n\n".join(parts)


def _rule_list() -> str:
    parts = []
    for topic, members in _rule_groups().items():
        rows = [[f"[{c.code}](rules/{c.code}.md)", c.name, c.title, _priority(c)] for c in members]
        parts += [f"## {topic}: {TOPICS[topic]}", _table(["code", "name", "what it finds", "priority"], rows)]
    return "\n\n".join(parts)


def _priority(card: Card) -> str:
    return f"{card.priority}, in preview" if card.is_preview else str(card.priority)


def _technique_nav() -> list[Any]:
    groups = _technique_groups().items()
    return [{stage.capitalize(): [technique_page(card.name) for card in members]} for stage, members in groups]


def _rule_nav() -> list[Any]:
    groups = _rule_groups().items()
    return [{f"{topic}: {TOPICS[topic]}": [rule_page(card) for card in members]} for topic, members in groups]


def _technique_groups() -> dict[str, list[TechniqueCard]]:
    groups: dict[str, list[TechniqueCard]] = {}
    for card in technique_cards():
        groups.setdefault(card.stage, []).append(card)
    return groups


def _rule_groups() -> dict[str, list[Card]]:
    groups: dict[str, list[Card]] = {}
    for card in cards().values():
        groups.setdefault(card.code[:3], []).append(card)
    return {topic: groups[topic] for topic in TOPICS if topic in groups}


def _extend(nav: Any, page: str, more: list[Any]) -> None:
    """Put entries behind a page, in the section of the navigation that holds it."""
    for section in nav:
        for entries in section.values():
            if page in entries:
                entries.extend(more)


def _of_root(text: str) -> str:
    """Return a file of the root as a page: links into docs/ and among the root's files lead to pages of the site."""

    def moved(found: re.Match[str]) -> str:
        target = found[2]
        target = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        return f"{found[1]}{target}{found[3] or ''})"

    return _LINK.sub(moved, text)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(headings), ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _codes(values: Iterable[Any]) -> str:
    return ", ".join(map(_code, values))


def _code(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return '`""`' if value == "" else f"`{value}`"
