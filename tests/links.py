"""Check the links of the documentation, without a network.

    python tests/links.py          # the repository's Markdown files
    python tests/links.py site     # also that no page of the built site loads anything from elsewhere

A link to a file must name a file of the repository, and its anchor a heading of that file. A link to another site must
have the form of one; it is not opened.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
_NOT_IN_SLUGS = re.compile(r"[^\w\- ]")
_HOST = re.compile(r"(localhost|127\.0\.0\.1|[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9-]+)*\.[a-z]{2,})(:\d+)?", re.I)
_LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
}  # a link may be rel=canonical


@dataclass(frozen=True)
class Fault:
    """Say what is wrong with a link.

    Attributes:
        file: The file that has the link.
        line: The line of the paragraph that has it; 0 where it is not known.
        target: The link.
        why: What is wrong.
    """

    file: Path
    line: int
    target: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.target}: {self.why}"


def documents(root: Path = ROOT) -> list[Path]:
    """Return the Markdown files of the repository that people read: in its root, docs/, examples/ and packages/."""
    folders = ("docs", "examples", "packages")
    return sorted([*root.glob("*.md"), *(path for folder in folders for path in (root / folder).rglob("*.md"))])


def faults(document: Path) -> list[Fault]:
    """Return what is wrong with the links of a Markdown file."""
    found = ((line, target, _fault(document, target)) for line, target in _links(document))
    return [Fault(document, line, target, why) for line, target, why in found if why]


def foreign_resources(site: Path) -> list[Fault]:
    """Return what the pages of a built site would load from elsewhere when they are opened."""
    found = []
    for page in sorted(site.rglob("*.html")):
        reader = _Resources()
        reader.feed(page.read_text(encoding="utf-8"))
        found += [Fault(page, 0, url, "is loaded from elsewhere") for url in reader.foreign]
    for sheet in sorted(site.rglob("*.css")):
        urls = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text(encoding="utf-8"))
        found += [Fault(sheet, 0, url, "is loaded from elsewhere") for url in urls]
    return found


class _Resources(HTMLParser):
    """Collect what a page loads from other sites."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        url = values.get(_LOADS.get(tag, "")) or ""
        if url.startswith(("http:", "https:", "//")) and values.get("rel") not in ("canonical", "next", "prev"):
            self.foreign.append(url)


def _links(document: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the target of each link and image."""
    for token in _parsed(document):
        for inner in token.children or []:
            target = inner.attrGet("href") or inner.attrGet("src")
            if isinstance(target, str):
                yield (token.map[0] + 1 if token.map else 0), target


def _fault(document: Path, target: str) -> str:
    """Return what is wrong with a link; "" where it is right."""
    parts = urlsplit(target)
    if parts.scheme in ("http", "https"):
        return "" if _HOST.fullmatch(parts.netloc) else "is no address of a site"
    if parts.scheme == "mailto":
        return "" if "@" in parts.path else "is no address of a person"
    if parts.scheme or parts.netloc:
        return f"has a scheme that nobody expects here: {parts.scheme or parts.netloc}"
    path = document if not parts.path else document.parent / unquote(parts.path)
    if not path.exists():
        return "there is no such file"
    if parts.fragment and path.suffix == ".md" and parts.fragment not in _anchors(path.resolve()):
        return f"{path.name} has no heading #{parts.fragment}"
    return ""


@cache
def _anchors(document: Path) -> frozenset[str]:
    """Return the anchors of a file's headings, as GitHub and the site make them."""
    tokens = _parsed(document)
    slugs: list[str] = []
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(inner.content for inner in following.children or [] if inner.type in ("text", "code_inline"))
            slug = _NOT_IN_SLUGS.sub("", text.strip().lower()).replace(" ", "-")
            slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return frozenset(slugs)


def _parsed(document: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(document.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    """Print every fault; return 1 where there is one."""
    found = [fault for document in documents() for fault in faults(document)]
    for site in arguments:
        found += foreign_resources(Path(site))
    for fault in found:
        print(fault)
    print(f"{len(documents())} documents, {len(found)} faulty links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
