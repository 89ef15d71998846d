"""A rule's card: what its docstring says, in sections."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.auditor.finding import Priority

_SECTION = re.compile(r"(?P<name>[A-Z][A-Za-z ]*?)(?:\s{2,}|\s*:\s+|$)(?P<text>.*)")
_INDENT = 12  # columns that a section's text is indented by, where the section's first line does not show it


@dataclass(frozen=True)
class Card:
    """What a rule is about. title: one sentence. sections: "Finds", "Why slow", "Example", "Instead", ..."""

    code: str
    name: str
    priority: Priority
    title: str
    sections: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


def read_card(code: str, name: str, priority: Priority, docstring: str | None) -> Card:
    """Read a rule's docstring.

    Args:
        code: The rule's code.
        name: The rule's name.
        priority: The rule's priority.
        docstring: A first line `CODE name: title`, then sections, as `read_sections` takes them.
    """
    text = inspect.cleandoc(docstring or "")
    first, sections = read_sections(text)
    title = first.partition(": ")[2] or first
    return Card(code, name, priority, title[:1].upper() + title[1:], sections, text)


def read_sections(text: str) -> tuple[str, dict[str, str]]:
    """Split a card into its title and its sections.

    Args:
        text: A title, then sections. A section begins with its name at the start of a line. Two spaces or a colon
            separate the name from its text, and the lines that follow are indented as the text is.

    Returns:
        The title as one line, and the text of each section.
    """
    title: list[str] = []
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    indent = 0
    for line in text.splitlines():
        found = _SECTION.fullmatch(line) if line[:1].strip() and title else None
        if found is not None:
            current = sections.setdefault(found["name"], [found["text"]])
            indent = found.start("text") if found["text"] else _INDENT
        elif current is not None:
            current.append(line[indent:] if not line[:indent].strip() else line.strip())
        elif line.strip():
            title.append(line.strip())
    return " ".join(title), {name: "\n".join(lines).strip() for name, lines in sections.items()}
