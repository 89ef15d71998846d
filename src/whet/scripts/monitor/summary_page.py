"""Render summary.html: the figures and charts of a run on one page that opens offline and loads nothing."""

import json
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from whet import __version__
from whet.scripts.monitor import metrics
from whet.scripts.monitor.figures import cut_short, status, table
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.summary import summarise
from whet.ui import charts, page_style

_SCRIPTS = ("format.js", "chart.js", "charts.js")


def render(run: Run) -> str:
    """Render the page: the summary as a table, and charts that the live page's own scripts draw from embedded data."""
    summary = summarise(run)
    word, kind = status(summary, running=run.ending is None)
    data = {"charts": metrics.charts(), "rows": run.history()["rows"]}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_read("saved.html.j2")).render(
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


def _read(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")
