"""Write patterns of property names, which match anywhere in a name, as expressions that match it as a whole."""

import re

from whet.server.expression_size import tokens
from whet.server.schemas.forms import SchemaRefused

_ANYTHING = "(?s:.*)"
_IN_CLASS = {r"\d": "0-9", r"\w": "a-zA-Z0-9_"}
_SETS = {r"\d": "[0-9]", r"\w": "[a-zA-Z0-9_]", r"\D": "[^0-9]", r"\W": "[^a-zA-Z0-9_]"}
_WRONG = {r"\b": "\\b", r"\B": "\\B", "(?=": "look-around", "(?!": "look-around", "(?<": "look-around"}


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern of a schema matches somewhere in a text.

    Raises:
        SchemaRefused: Python cannot read the pattern.
    """
    try:
        return re.search(pattern, text, re.ASCII) is not None
    except re.error as error:
        raise SchemaRefused(f"the pattern {pattern[:64]!r} cannot be read: {error}") from error


def whole(pattern: str) -> str:
    """Return the expression of whole names, as a grammar writes it between slashes.

    Raises:
        SchemaRefused: The pattern has look-around, or anchors in the midst of it.
    """
    branches: list[list[str]] = [[]]
    level = 0
    for token in tokens(pattern):
        level += (token[0] == "(" and not token.endswith(")")) - (token == ")")
        if token == "|" and level == 0:
            branches.append([])
        else:
            branches[-1].append(token)
    return "|".join(_branch(tokens_, pattern) for tokens_ in branches)


def _branch(found: list[str], pattern: str) -> str:
    begin = end = _ANYTHING
    if found and found[0] == "^":
        begin, found = "", found[1:]
    if found and found[-1] == "$":
        end, found = "", found[:-1]
    text = "".join(_portable(token) for token in found)
    joined = "".join(found)
    for wrong, name in _WRONG.items():
        if wrong in joined:
            raise _refused(pattern, f"{name} is")
    if any(token in ("^", "$", r"\A", r"\z", r"\Z") for token in found):
        raise _refused(pattern, "^ and $ in the midst of it are")
    return f"{begin}(?:{text}){end}"


def _portable(token: str) -> str:
    if token[0] == "[":
        for written, meant in _IN_CLASS.items():
            token = token.replace(written, meant)
    return _SETS.get(token, token).replace("\\/", "/").replace("/", r"\/").replace("\n", r"\n")


def _refused(pattern: str, why: str) -> SchemaRefused:
    return SchemaRefused(f"the pattern {pattern[:64]!r} of names cannot be enforced: {why} not supported")
