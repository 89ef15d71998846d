"""Hold the charts of pages in a browser: uPlot 1.6.32 (MIT, see uPlot.LICENSE), as published on npm, and plot.js.

A page serves or contains `SCRIPTS` in this order and `STYLE`. They load nothing else: pages work without a network.
"""

from importlib.resources import files

SCRIPTS = ("uPlot.iife.min.js", "plot.js")
STYLE = "uPlot.min.css"
FILES = (*SCRIPTS, STYLE)


def read(name: str) -> str:
    """Return the text of one of `FILES`."""
    return (files("whet.charts") / name).read_text(encoding="utf-8")
