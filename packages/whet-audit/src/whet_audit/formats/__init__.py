"""The output formats of an audit, one a file. Only the one that is asked for is imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command's help names the formats, and needs no report
    from whet_audit.report import Report

FORMATS = ("top", "full", "concise", "json", "github", "sarif", "markdown", "html")


def render(report: Report, name: str, *, colour: bool = False, columns: int = 80) -> str:
    """Return the report in a format, without a line end at the end.

    colour: ANSI's, where the format knows any. columns: the width of paragraphs, in the formats "top" and "full".

    html needs a template engine that takes a third of the start-up time, hence the late import.
    """
    module = import_module(f"whet_audit.formats.{name}")
    width = {"columns": columns} if name in ("top", "full") else {}
    text: str = module.render(report, colour=colour, **width)
    return text
