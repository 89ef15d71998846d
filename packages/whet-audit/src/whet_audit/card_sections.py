"""Read a card: a docstring in sections, as techniques and audit rules have one."""

import re

_SECTION = re.compile(r"(?P<name>[A-Z][A-Za-z ]*?)(?:\s{2,}|\s*:\s+|$)(?P<text>.*)")
_INDENT = 12  # columns that a section's text is indented by, where the section's first line does not show it


def read_sections(text: str) -> tuple[str, dict[str, str]]:
    """Split a card into its title, as one line, and its sections.

    Args:
        text: A title, then sections. A section begins with its name at the start of a line. Two spaces or a colon
            separate the name from its text, and the lines that follow are indented as the text is.
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
