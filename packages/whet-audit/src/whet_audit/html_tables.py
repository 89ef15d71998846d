"""Make the tables that a notebook shows of whet's results. They load nothing, and every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
.whet table { border-collapse: collapse; margin: .4em 0; }
.whet th, .whet td { border: 0; border-bottom: 1px solid #8884; padding: .2em .8em .2em 0; text-align: left; }
.whet th { font-weight: 600; opacity: .75; }
.whet td.number, .whet th.number { text-align: right; font-variant-numeric: tabular-nums; }
.whet caption { text-align: left; font-weight: 600; padding: .3em 0; }
.whet p { margin: .3em 0; max-width: 60em; }
"""


def block(*parts: str) -> str:
    """Return what a notebook shows for one result: tables and paragraphs, of which empty ones are left out."""
    return f'<div class="whet"><style>{_STYLE}</style>{"".join(parts)}</div>'


def paragraph(text: str, *, is_strong: bool = False) -> str:
    """Return a text as a paragraph; "" for no text. Its line breaks are kept."""
    if not text:
        return ""
    words = "<br>".join(escape(line) for line in text.splitlines())
    return f"<p><strong>{words}</strong></p>" if is_strong else f"<p>{words}</p>"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", numbers: Iterable[int] = ()
) -> str:
    """Return a table; "" where it has no rows.

    Args:
        columns: The titles of the columns; an empty sequence for a table without titles.
        rows: The cells of each row, as text. Line breaks in them are kept.
        numbers: The columns, counted from 0, that hold figures and are aligned on the right.
    """
    right = frozenset(numbers)
    body = "".join(f"<tr>{''.join(_cell('td', text, i in right) for i, text in enumerate(row))}</tr>" for row in rows)
    if not body:
        return ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(_cell("th", text, i in right) for i, text in enumerate(columns))
    return f"<table>{title}{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _cell(tag: str, text: str, is_number: bool) -> str:
    kind = ' class="number"' if is_number else ""
    return f"<{tag}{kind}>{'<br>'.join(escape(line) for line in text.splitlines())}</{tag}>"
