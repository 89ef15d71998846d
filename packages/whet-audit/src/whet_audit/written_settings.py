"""What files of settings beside the code set: keys of yaml, json and toml, and options on lines of shell scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
_KEY = re.compile(r"""(?:^|[\s{,"'.+-])([A-Za-z_][\w-]*)["']?\s*[:=][ \t]*("[^"\n]*"|'[^'\n]*'|[^\s,}\]]*)""")
_FLAG = re.compile(r"--([A-Za-z][\w-]*)(?![\w=-])")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "none", "~"), None),
}


class WrittenSettings:
    """The values that each key is given anywhere, and all words, which may name classes."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.words: set[str] = set()
        self._values: dict[str, list[object]] = {}
        for text in texts:
            told = _COMMENT.sub("", text)
            self.words.update(re.findall(r"\w+", told))
            for key, raw in _KEY.findall(told):
                self._values.setdefault(key.replace("-", "_"), []).append(_value(raw))
            for flag in _FLAG.findall(told):
                self._values.setdefault(flag.replace("-", "_"), []).append(...)  # whatever follows it

    def values(self, key: str) -> list[object]:
        """What a key is set to; ... for what is no plain value."""
        return self._values.get(key, [])


def _value(raw: str) -> object:
    word = raw.strip("\"'")
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word or ...
