"""A rule's card: what its docstring says, in sections."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.auditor.finding import Priority

_SECTION = re.compile(r"(?P<name>[A-Z][A-Za-z ]*?)(?:\s{2,}|\s*:\s+|$)(?P<text>.*)")
_INDENT = 12  # columns that a section's text is indented by


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
    """Take a docstring apart: a first line `CODE name: title`, then sections, each of a name and indented text."""
    text = inspect.cleandoc(docstring or "")
    first, _, rest = text.partition("\n")
    title = first.partition(": ")[2] or first
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in rest.splitlines():
        found = _SECTION.fullmatch(line) if line[:1].strip() else None
        if found is not None:
            current = sections.setdefault(found["name"], [found["text"]])
        elif current is not None:
            current.append(line[_INDENT:] if not line[:_INDENT].strip() else line.strip())
        elif line.strip():
            title = f"{title} {line.strip()}"
    return Card(
        code,
        name,
        priority,
        title[:1].upper() + title[1:],
        {name: "\n".join(lines).strip() for name, lines in sections.items()},
        text,
    )
