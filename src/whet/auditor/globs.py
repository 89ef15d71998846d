"""Patterns of paths, as in .gitignore: without a slash any part of the path, with one from the top."""

from __future__ import annotations

import re
from functools import cache

_PIECE = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_AS_REGEX = {"**/": "(?:[^/]+/)*", "/**": "/.+", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matches(path: str, pattern: str) -> bool:
    """Whether a relative path with slashes, or a directory above it, fits the pattern."""
    return _regex(pattern).match(path) is not None


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    pattern = pattern.removeprefix("./")
    anywhere = "/" not in pattern.rstrip("/")
    body = "".join(map(_piece, _PIECE.findall(pattern.strip("/"))))
    return re.compile(f"{'(?:.*/)?' if anywhere else ''}(?:{body})(?:/|$)")


def _piece(text: str) -> str:
    if text in _AS_REGEX:
        return _AS_REGEX[text]
    if text.startswith("[") and len(text) > 2:
        inner = text[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]" if inner[0] != "^" else f"[\\{inner}]"
    return re.escape(text)
