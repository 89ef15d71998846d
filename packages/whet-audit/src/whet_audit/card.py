"""A rule's card: what its docstring says, in sections."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

from whet_audit.card_sections import read_sections
from whet_audit.finding import Priority


@dataclass(frozen=True)
class Card:
    """What a rule is about. title: one sentence. sections: "Finds", "Why slow", "Example", "Instead", ..."""

    code: str
    name: str
    priority: Priority
    title: str
    sections: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    is_preview: bool = False


def read_card(code: str, name: str, priority: Priority, docstring: str | None, *, is_preview: bool = False) -> Card:
    """Read a rule's docstring.

    Args:
        code: The rule's code.
        name: The rule's name.
        priority: The rule's priority.
        docstring: A first line `CODE name: title`, then sections, as `read_sections` takes them.
        is_preview: Whether the rule is off unless it is asked for.
    """
    text = inspect.cleandoc(docstring or "")
    first, sections = read_sections(text)
    title = first.partition(": ")[2] or first
    return Card(code, name, priority, title[:1].upper() + title[1:], sections, text, is_preview)
