"""The link check finds what is broken, and finds nothing in the documents as they are."""

from pathlib import Path

import pytest

import links


def test_no_link_of_the_repository_is_broken() -> None:
    documents = links.documents()
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tune.md"} <= {document.name for document in documents}
    assert [str(fault) for document in documents for fault in links.faults(document)] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a](missing.md)", "no such file"),
        ("![a](missing.png)", "no such file"),
        ("[a][b]\n\n[b]: missing.md", "no such file"),
        ("[a](other.md#absent)", "no heading #absent"),
        ("[a](#absent)", "no heading #absent"),
        ("| a |\n|---|\n| [a](missing.md) |", "no such file"),
        ("[a](https://nothing)", "no address of a site"),
        ("[a](https:/example.org)", "no address of a site"),
        ("<https://exa_mple>", "no address of a site"),
        ("[a](ftp://example.org/a)", "scheme"),
    ],
)
def test_a_planted_broken_link_is_found(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "other.md").write_text("# Here\n")
    document = tmp_path / "page.md"
    document.write_text(f"# Page\n\n{text}\n")
    (fault,) = links.faults(document)
    assert why in fault.why


def test_links_that_lead_somewhere_are_not_faults(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two `words`, and more\n\n## Twice\n\n## Twice\n")
    document = tmp_path / "page.md"
    document.write_text(
        "# Page\n\n[a](other.md#two-words-and-more) [b](other.md#twice-1) [c](#page) [d](https://example.org/x?y#z) "
        "[e](.) <https://docs.example.org> `[f](missing.md)`\n\n```text\n[g](missing.md)\n```\n"
    )
    assert links.faults(document) == []


def test_a_page_that_loads_something_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<link rel="canonical" href="https://example.org/page.html"><link rel="stylesheet" href="own.css">'
        '<script src="https://example.org/a.js"></script><img src="//example.org/b.png">'
        '<a href="https://example.org">read on</a>'
    )
    (tmp_path / "own.css").write_text('@import "https://example.org/c.css"; a { background: url(own.png) }')
    found = [fault.target for fault in links.foreign_resources(tmp_path)]
    assert found == ["https://example.org/a.js", "//example.org/b.png", "https://example.org/c.css"]
