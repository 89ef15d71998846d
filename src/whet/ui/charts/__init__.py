"""Hold what pages in a browser share beside their style: uPlot 1.6.32 (MIT, as published on npm), plot.js, basics.js.

The licence of uPlot is uPlot.LICENSE.
A page serves or contains `SCRIPTS` in this order and `STYLE`. Pages whose scripts are modules may import `MODULE` too:
numbers as people read them, elements, waits. None of them loads anything else: pages work without a network.
"""

from importlib.resources import files

from whet.ui import page_style

SCRIPTS = ("uPlot.iife.min.js", "plot.js")
MODULE = "basics.js"
STYLE = "uPlot.min.css"
FILES = (*SCRIPTS, MODULE, STYLE)

TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}
"""The types of the files that pages consist of, by what their names end with."""

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
_NO_MARKUP = "require-trusted-types-for 'script'; trusted-types 'none'"  # no text is read as HTML
PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": f"{_POLICY}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; {_NO_MARKUP}",
}
"""The headers of a page's files: nothing comes from elsewhere, is kept, or lies in another page's frame."""


def read(name: str) -> str:
    """Return the text of one of `FILES`."""
    return (files("whet.ui.charts") / name).read_text(encoding="utf-8")


def page_files(room: str) -> dict[str, bytes]:
    """Return a page's files by name: those of the folder `page` in the package `room`, FILES, and the shared style."""
    shared = {name: read(name) for name in FILES} | {name: page_style.read(name) for name in page_style.FILES}
    own = {
        entry.name: entry.read_bytes()
        for entry in (files(room) / "page").iterdir()
        if entry.is_file() and entry.name.rpartition(".")[2] in TYPES
    }
    return {name: text.encode() for name, text in shared.items()} | own
