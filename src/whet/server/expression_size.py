r"""Estimate what a regular expression costs llguidance, so that an expensive one is refused before it is compiled.

llguidance follows an expression by derivatives: the expression of what may come after the next byte. Its fuel is
counted between derivatives, so one derivative must be cheap. Two things make one expensive:

- Optional parts in a row. The derivative of `a?b?c?` joins those of `a?b?c?`, `b?c?` and `c?`. It grows with the
  square of the number of parts. A counted repeat such as `a{0,1000}` is one part.
- Long runs of plain characters. Each derivative copies what is left of the run.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MOST_STARTS = 200_000  # of the optional parts of one structure: about 630 optional characters in a row
MOST_PLAIN = 8_192  # bytes of plain text in a row

_SPACES = re.compile(r"\(\?[a-zA-Z]*x")  # the flag by which spaces and comments are no part of an expression
_NO_PART = re.compile(r"\s+|#[^\n]*")
_TOKEN = re.compile(
    r"\\[pPxuU]\{[^}]*\}|\\[pP].|\\x[0-9a-fA-F]{2}|\\.|\(\?(?:P?<\w+>|[a-zA-Z-]*:)|\(\?[a-zA-Z-]+\)"
    r"|[*+?]\??|\{[0-9]*,?[0-9]*\}\??|.",
    re.DOTALL,
)
_NOTHING = frozenset({"^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z"})
_ONCE = frozenset({"{1}", "{1,1}"})
_SETS = frozenset("dDsSwWpP")


@dataclass(frozen=True)
class ExpressionSize:
    """A size says what an expression costs.

    Attributes:
        starts: For each optional part, in how many ways the text can go on from there, added up.
        plain: The bytes of the longest run of plain characters.
    """

    starts: int
    plain: int


@dataclass(frozen=True)
class _Part:
    """A part is a character, a set, or a group, with its repeat.

    Attributes:
        is_optional: Whether the empty text matches.
        ways: In how many ways it can begin.
        starts: As in ExpressionSize, within the part.
        plain: The bytes of the part if it is nothing but plain characters, else 0.
    """

    is_optional: bool
    ways: int
    starts: int = 0
    plain: int = 0


@dataclass
class _Group:
    """A group is being read. It has alternatives before the last `|`, and parts after it."""

    alternatives: list[_Part] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)


def why_expensive(expressions: Iterable[str]) -> str | None:
    """Return why a structure with these expressions is not compiled, and what to do about it; None where it is."""
    sizes = [expression_size(one) for one in expressions]
    starts = sum(size.starts for size in sizes)
    if starts > MOST_STARTS:
        return (
            f"too many optional parts follow one another: counting for each one in how many ways the text can go on "
            f"gives {starts}, and {MOST_STARTS} is the most (about 630 optional characters in a row): write a counted "
            f"repeat instead, such as (a|b){{0,1000}}"
        )
    return why_too_plain(max((size.plain for size in sizes), default=0))


def why_too_plain(num_bytes: int) -> str | None:
    """Return why a structure with so many bytes of fixed text in a row is not compiled; None where it is."""
    if num_bytes <= MOST_PLAIN:
        return None
    return f"{num_bytes} bytes of fixed text stand in a row, and {MOST_PLAIN} is the most: write a shorter text"


def expression_size(text: str) -> ExpressionSize:
    """Return the size of an expression. One that is not well-formed has some size: the library refuses it."""
    longest = 0
    groups = [_Group()]
    for token in tokens(text):
        parts = groups[-1].parts
        if token[0] == "(" and not (token[1:2] == "?" and token[-1] == ")"):
            groups.append(_Group())
        elif token == ")" and len(groups) > 1:
            longest = max(longest, _longest_plain(parts))
            closed = _closed(groups.pop())
            groups[-1].parts.append(closed)
        elif token == "|":
            longest = max(longest, _longest_plain(parts))
            groups[-1].alternatives.append(_in_a_row(parts))
            groups[-1].parts = []
        elif token[0] in "*+?" or (token[0] == "{" and len(token) > 1):
            if parts and token not in _ONCE:
                parts[-1] = _Part(parts[-1].is_optional or _may_be_none(token), parts[-1].ways, parts[-1].starts)
        elif token[0] != "(" and token not in _NOTHING:
            parts.append(_Part(False, 1, plain=_num_plain(token)))
    while len(groups) > 1:
        closed = _closed(groups.pop())
        groups[-1].parts.append(closed)
    longest = max(longest, _longest_plain(groups[0].parts))
    return ExpressionSize(_closed(groups[0]).starts, longest)


def tokens(text: str) -> Iterator[str]:
    """Yield the characters, classes, groups and repeats of an expression."""
    has_spaces = _SPACES.search(text) is not None
    at = 0
    while at < len(text):
        if has_spaces and (space := _NO_PART.match(text, at)) is not None:
            at = space.end()
            continue
        found = _TOKEN.match(text, at)
        end = _end_of_class(text, at) if text[at] == "[" else found.end() if found is not None else at + 1
        yield text[at:end]
        at = end


def _end_of_class(text: str, begin: int) -> int:
    """Return where a class such as `[a-z&&[^aeiou]]` ends. A `]` that stands first in it is a plain character."""
    level, at = 0, begin
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "[":
            level += 1
            at += text.startswith("^", at + 1)
            at += text.startswith("]", at + 1)
        elif text[at] == "]":
            level -= 1
            if not level:
                return at + 1
        at += 1
    return len(text)


def _may_be_none(repeat: str) -> bool:
    return repeat[0] in "*?" or (not repeat.strip("{}?+").partition(",")[0].strip("0") and repeat[0] == "{")


def _num_plain(token: str) -> int:
    if token[0] == "[" or token == "." or (token[0] == "\\" and token[1:2] in _SETS):
        return 0
    return 1 if token[0] == "\\" else len(token.encode(errors="replace"))


def _longest_plain(parts: list[_Part]) -> int:
    longest = run = 0
    for part in parts:
        run = run + part.plain if part.plain else 0
        longest = max(longest, run)
    return longest


def _in_a_row(parts: list[_Part]) -> _Part:
    ways = starts = 0
    is_optional = True
    for part in reversed(parts):
        starts += part.starts
        if part.is_optional:
            ways += part.ways
            starts += ways
        else:
            ways, is_optional = part.ways, False
    plain = sum(part.plain for part in parts) if all(part.plain for part in parts) else 0
    return _Part(is_optional, ways, starts, plain)


def _closed(group: _Group) -> _Part:
    last = _in_a_row(group.parts)
    if not group.alternatives:
        return last
    every = [*group.alternatives, last]
    is_optional = any(one.is_optional for one in every)
    return _Part(is_optional, sum(one.ways for one in every), sum(one.starts for one in every))
