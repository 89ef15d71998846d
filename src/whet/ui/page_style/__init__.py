"""Define how whet's pages look: design tokens (colours, type, spacing) and the style that all pages share.

`tokens.css` contains the tokens alone; the documentation uses it too. `base.css` styles what all pages have in common:
head, text, tables, tiles, verdicts, buttons, print. A page adds a style sheet of its own for the rest. Servers send
both files; a saved report contains them. They refer to no other file.
"""

import re
from importlib.resources import files

TOKENS = "tokens.css"
BASE = "base.css"
FILES = (TOKENS, BASE)


def read(name: str) -> str:
    """Return the text of one of `FILES`."""
    return (files("whet.ui.page_style") / name).read_text(encoding="utf-8")


def style(own: str = "") -> str:
    """Return the style of a page that contains all it needs. The page's `own` style comes last."""
    return "\n".join([*map(read, FILES), own]).strip()


def chart_colours() -> list[str]:
    """Return the colours of the lines of a chart on white paper, in order, as #rrggbb."""
    light = read(TOKENS).partition("@media")[0]
    return re.findall(r"--c\d: (#[0-9a-f]{6})", light)
