"""Show in a notebook what is installed, and what is missing."""

from whet.installation.checkup import Checkup
from whet.ui import html_tables


def checkup_html(checkup: Checkup) -> str:
    columns = ("for", "what is missing or wrong", "what to do")
    advice = [(entry.concerns, entry.problem, entry.remedy) for entry in checkup.advice]
    tables = [html_tables.table((), rows, caption=title) for title, rows in checkup.sections()]
    caption = "what is missing for which command, and what to do"
    heading = html_tables.paragraph(checkup.sentence, is_strong=True)
    return html_tables.block(heading, *tables, html_tables.table(columns, advice, caption=caption))
