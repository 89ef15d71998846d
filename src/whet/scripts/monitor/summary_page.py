"""Render summary.html: the figures and charts of a run on one page that opens offline and loads nothing."""

import json
from pathlib import Path

from markupsafe import Markup

from whet import __version__
from whet.scripts.monitor import metrics
from whet.scripts.monitor.figures import cut_short, status, table
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.summary import summarise
from whet.ui import charts, page_style
from whet.ui.templates import templates

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("format.js", "chart.js", "charts.js")


def render(run: Run) -> str:
    """Render the page: the summary as a table, and charts that the live page's own scripts draw from embedded data."""
    summary = summarise(run)
    word, kind = status(summary, running=run.ending is None)
    data = {"charts": metrics.charts(), "rows": run.history()["rows"]}
    return (
        templates(_PAGE)
        .get_template("saved.html.j2")
        .render(
            s=summary,
            version=__version__,
            pid=run.facts.pid,
            word=word,
            kind=kind,
            notice=cut_short(summary) if run.ending else "",
            rows=table(summary),
            css=Markup(page_style.style(charts.read(charts.STYLE) + _read("style.css"))),
            scripts=[Markup(text) for text in (*map(charts.read, charts.SCRIPTS), *map(_read, _SCRIPTS))],
            # Inside a script element, only "</script" and "<!--" have a meaning, so every "<" is escaped.
            data=Markup(json.dumps(data).replace("<", "\\u003c")),
        )
    )


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")
