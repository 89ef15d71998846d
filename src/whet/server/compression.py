"""Compute how many bytes of text one token can hold, to refuse texts too long for a model without tokenising them.

Most tokenizers lose nothing: every byte of the text goes into a token, and a token holds a bounded number of bytes. But
some drop or merge text without bound: WordPiece turns any long word into one [UNK], normalisers strip accents, and
pre-tokenizers remove spaces. For these, and for parts that this module does not know, there is no bound.

Source: the tokenizers library's file format (tokenizer.json).
"""

from collections.abc import Mapping
from typing import Any

_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_KEEPING = {"ByteLevel", "Metaspace", "Digits"}  # pre-tokenizers that drop nothing
_SPLITTING = {"Split", "Punctuation"}  # pre-tokenizers that drop nothing unless their behaviour is "Removed"

# By which factor a normaliser can shrink a text, at most. A composed character (NFC) has at least a third of the UTF-8
# bytes of its parts. Compatibility forms (NFKC, NFKD) and lower case have at least a quarter.
_SHRINKING = {"Prepend": 1, "ByteLevel": 1, "NFD": 1, "NFC": 3, "Lowercase": 4, "NFKD": 4, "NFKC": 12}


def bytes_per_token(described: Mapping[str, Any]) -> int | None:
    """Return the most bytes of UTF-8 that a token of a tokenizer.json can hold; None if no bound is known."""
    model = described.get("model") or {}
    vocabulary = model.get("vocab")
    added = described.get("added_tokens") or []
    if model.get("type") != "BPE" or not isinstance(vocabulary, dict):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in added):  # it swallows any number of spaces
        return None
    splitting = parts(described.get("pre_tokenizer"), "pretokenizers")
    normalising = parts(described.get("normalizer"), "normalizers")
    is_byte_level = any(part.get("type") == "ByteLevel" for part in [*normalising, *splitting])
    shrinking = _shrinking(normalising)
    has_all_bytes = (is_byte_level and _alphabet() <= vocabulary.keys()) or (
        bool(model.get("byte_fallback")) and vocabulary.keys() >= _BYTE_TOKENS
    )
    if shrinking is None or not has_all_bytes or not all(map(_keeps_all, splitting)):
        return None
    size = len if is_byte_level else _num_bytes  # in a byte-level vocabulary, each character is one byte
    longest = max(map(size, vocabulary), default=1)
    longest_added = max((_num_bytes(token.get("content", "")) for token in added), default=1)
    return max(longest, longest_added) * shrinking


def _shrinking(normalising: list[Mapping[str, Any]]) -> int | None:
    """Return the factor by which the normalisers can shrink a text at most, or None if it is not known."""
    factor = 1
    for part in normalising:
        kind = part.get("type")
        if kind == "Replace":
            pattern = (part.get("pattern") or {}).get("String")
            if pattern is None or _num_bytes(pattern) > _num_bytes(part.get("content") or ""):
                return None
        elif kind in _SHRINKING:
            factor *= _SHRINKING[kind]
        else:
            return None
    return factor


def _keeps_all(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return kind in _KEEPING or (kind in _SPLITTING and part.get("behavior") != "Removed")


def parts(described: Any, name: str) -> list[Mapping[str, Any]]:
    """Return the steps of a part of tokenizer.json in their order. `name` is the field for those of a sequence."""
    if not isinstance(described, dict):
        return []
    if described.get("type") == "Sequence":
        return [part for one in described.get(name) or [] for part in parts(one, name)]
    return [described]


def _alphabet() -> frozenset[str]:
    """Return the characters that stand for the 256 bytes in a byte-level vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel

    return frozenset(ByteLevel.alphabet())


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))
