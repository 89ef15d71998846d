r"""Find where a long text may be cut so that its parts, encoded one by one, have the tokens of the whole.

A tokenizer that looks at the text in one piece lets no cut be safe. Most split it into words first, by a regular
expression. Two places are safe for those that are known here:

- before a space that stands between two letters, as in "one| two";
- behind a line end that follows no white space and is followed by a letter, as in "one.\n|two".

No alternative of a known expression matches across such a place: none takes a space after a letter, nor a letter after
a line end. None looks behind, and the one that looks ahead, `\s+(?!\S)`, does so only behind white space; for a single
line end it takes the same as `\s+`. So the text before the place is split as if it ended there, and the text behind it
as if it began there. Whatever is not known here is encoded in one piece.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LETTER = r"[^\W\d_]"
_SPACE = re.compile(rf"(?<={_LETTER}) (?={_LETTER})")
_SPACE_OR_LINE = re.compile(rf"(?<={_LETTER}) (?={_LETTER})|(?<=\S\n)(?={_LETTER})")

# The alternatives of the expressions of GPT-2, GPT-4 (also Llama 3, Qwen and others), GPT-4o and DeepSeek.
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LETTERS = frozenset(
    (
        r" ?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    )
)
# These two take every letter between them.
_CASED = frozenset(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIXES}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIXES}?",
    )
)
_OTHERS = frozenset(
    (
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _SUFFIXES),
        *(r" ?\p{N}+", r"\p{N}", r"\p{N}{1,3}", "[0-9][0-9][0-9]", "[0-9]"),
        *(
            r" ?[^\s\p{L}\p{N}]+",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r" ?[\p{P}\p{S}]+[\r\n]*",
        ),
        *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+", "[一-龥぀-ゟ゠-ヿ]+"),
        '[!"#$%&' + r"'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    )
)
_WORDS = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")  # they split at all white space
_BY_CHARACTER = ("Digits", "Punctuation")  # what they do with a character depends on nothing around it
_NORMALIZERS = ("NFC", "NFD", "Lowercase")  # what they do on one side of such a place depends on nothing beyond it


@dataclass(frozen=True)
class Cutter:
    """Find places where a text may be cut.

    Attributes:
        reason: Why texts are never cut; an empty text where they are.
        find: Returns the last place in a text at or behind a position, or None. It looks at no text behind the end.
    """

    reason: str
    find: Callable[[str, int], int | None]


def cutter_of(described: Mapping[str, Any]) -> Cutter:
    """Return what cuts texts for a tokenizer, by what its tokenizer.json says of it."""
    reason = _hindrance(described)
    if reason:
        return Cutter(reason, lambda text, least: None)
    kinds = [part.get("type") for part in _flat(described["pre_tokenizer"], "pretokenizers")]
    pattern = _SPACE if "Metaspace" in kinds else _SPACE_OR_LINE
    return Cutter("", lambda text, least: _last(pattern, text, least))


def anywhere(added: Sequence[str]) -> Cutter:
    """Return what cuts texts for a tokenizer whose tokens are characters or bytes: anywhere but within added tokens."""
    longest = max(map(len, added), default=0)

    def find(text: str, least: int) -> int | None:
        for place in range(len(text) - longest, least - 1, -1):
            around = text[max(0, place - longest + 1) : place + longest - 1]
            if not any(one in around for one in added):  # one that is near may lie on both sides
                return place
        return None

    return Cutter("", find)


def _last(pattern: re.Pattern[str], text: str, least: int) -> int | None:
    """Return the last match at or behind a position. The text is looked at from its end, in growing stretches."""
    width, end = 256, len(text)
    while end > least:
        begin = max(least, len(text) - width)
        places = [match.start() for match in pattern.finditer(text, begin)]
        if places:
            return places[-1]
        end, width = begin, 4 * width
    return None


def _hindrance(described: Mapping[str, Any]) -> str:
    """Return why texts may not be cut, or an empty text."""
    for token in described.get("added_tokens") or []:
        if token.get("lstrip") or token.get("rstrip") or re.search(r"\s", token.get("content", "")):
            return f"its token {token.get('content')!r} takes or holds white space"
    for normalizer in _flat(described.get("normalizer"), "normalizers"):
        if normalizer.get("type") not in _NORMALIZERS:
            return f"its normalizer {normalizer.get('type')} may look at the whole text"
    if (described.get("model") or {}).get("dropout"):
        return "its merges are dropped at random"
    for part in _flat(described.get("pre_tokenizer"), "pretokenizers"):
        splits = _splits_words(part)
        if splits is None:
            return f"it is not known where its pre-tokenizer {part.get('type')} splits"
        if splits:
            return ""
    return "it does not split text into words first"


def _splits_words(part: Mapping[str, Any]) -> bool | None:
    """Return whether a pre-tokenizer splits at every safe place. None: it may look across one."""
    kind = part.get("type")
    if kind in _WORDS:
        return True
    if kind in _BY_CHARACTER:
        return False
    if kind == "ByteLevel":
        return True if part.get("use_regex", True) and not part.get("add_prefix_space", True) else None
    if kind == "Metaspace":
        return True if part.get("split", True) and part.get("replacement") == "▁" else None
    if kind == "Split":
        return _splits_by(part)
    return None


def _splits_by(part: Mapping[str, Any]) -> bool | None:
    """Return the same for a split by a regular expression."""
    expression = (part.get("pattern") or {}).get("Regex")
    # Matches are kept and what lies between them too (Isolated), or matches alone (Removed, the other way round).
    if not isinstance(expression, str) or (part.get("behavior"), bool(part.get("invert"))) not in (
        ("Isolated", False),
        ("Removed", True),
    ):
        return None
    alternatives = set(_alternatives(expression))
    if not alternatives <= _LETTERS | _CASED | _OTHERS:
        return None
    takes_letters = bool(alternatives & _LETTERS) or alternatives >= _CASED
    if part.get("behavior") == "Removed" and not takes_letters:
        return None  # what lies on both sides of a place would be gone
    return takes_letters


def _alternatives(expression: str) -> list[str]:
    """Return what stands between the bars of a regular expression that are in no group or class."""
    found, depth, in_class, escaped = [""], 0, False, False
    for character in expression:
        if not escaped and not in_class:
            depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and not (escaped or in_class or depth):
            found.append("")
            continue
        if not escaped:
            in_class = character == "[" or (in_class and character != "]")
        escaped = character == "\\" and not escaped
        found[-1] += character
    return found


def _flat(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return the parts of a sequence, or the part itself; nothing for None."""
    if part is None:
        return []
    if part.get("type") != "Sequence":
        return [part]
    return [one for inner in part.get(name) or [] for one in _flat(inner, name)]
