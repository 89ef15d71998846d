"""Write texts as a grammar of rules takes them."""

import json

from whet.server.schemas.forms import Text

# Without \u, each text has one way to be written, so that two names that are written differently are different.
CHARACTER = r'([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])'


def literal(text: str) -> str:
    """Return a text as a grammar writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def quoted(text: str) -> str:
    """Return a text of JSON as a grammar writes it, with the text's own quotes."""
    return literal(json.dumps(text, ensure_ascii=False))


def plain_text(form: Text) -> str:
    """Return the body of the terminal of a text without patterns and formats."""
    if form.values is not None:
        return " | ".join(map(quoted, form.values))
    count = (
        "*" if not form.least and form.most is None else f"{{{form.least},{'' if form.most is None else form.most}}}"
    )
    body = f'/"{CHARACTER}{count}"/'
    return body + "".join(f" & ~({' | '.join(map(quoted, sorted(form.others)))})" for _ in range(bool(form.others)))
