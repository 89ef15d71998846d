"""Encode characters and bytes by a table, some hundred times as fast as a tokenizer that goes through them one by one.

whet's tokenizers of characters and of bytes are ordinary tokenizers of the tokenizers library. What is done here gives
the same token ids. A text that holds an added token, such as an end of text, is left to the tokenizer.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.tokenizer_files.byte_alphabet import BYTE_OF

CHARACTER = r"[\s\S]"  # the expression by which whet's tokenizer of characters splits
_NUM_CHARACTERS = 0x110000

Encode = Callable[[str], NDArray[np.uint32]]


def direct_encoder(tokenizer: Any, described: Mapping[str, Any]) -> Encode | None:
    """Return what encodes texts for a tokenizer of characters or of bytes; None for any other tokenizer.

    Args:
        tokenizer: A tokenizers.Tokenizer.
        described: The content of its tokenizer.json.
    """
    by_table = _by_characters(described) or _by_bytes(described)
    if by_table is None:
        return None
    added = [token["content"] for token in described.get("added_tokens") or []]

    def encode(text: str) -> NDArray[np.uint32]:
        if any(token in text for token in added):
            return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)
        return by_table(text)

    return encode


def described_by(tokenizer: Any) -> dict[str, Any]:
    """Return the content of a tokenizer's tokenizer.json."""
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    return described


def _by_characters(described: Mapping[str, Any]) -> Encode | None:
    model, split = described.get("model") or {}, described.get("pre_tokenizer") or {}
    if model.get("type") != "WordLevel" or described.get("normalizer") is not None:
        return None
    if (split.get("type"), split.get("behavior"), split.get("pattern")) != ("Split", "Isolated", {"Regex": CHARACTER}):
        return None
    vocabulary = model["vocab"]
    unknown = vocabulary.get(model.get("unk_token"))
    if unknown is None:
        return None
    table = np.full(_NUM_CHARACTERS, unknown, np.uint32)
    for token, token_id in vocabulary.items():
        if len(token) == 1:
            table[ord(token)] = token_id
    return lambda text: table[np.frombuffer(text.encode("utf-32-le"), "<u4")]


def _by_bytes(described: Mapping[str, Any]) -> Encode | None:
    model, split = described.get("model") or {}, described.get("pre_tokenizer") or {}
    vocabulary = model.get("vocab")
    if model.get("type") != "BPE" or model.get("merges") or described.get("normalizer") is not None:
        return None
    if split.get("type") != "ByteLevel" or split.get("add_prefix_space", True):
        return None
    if not isinstance(vocabulary, dict) or not vocabulary.keys() >= BYTE_OF.keys():
        return None
    table = np.zeros(256, np.uint32)
    for character, byte in BYTE_OF.items():
        table[byte] = vocabulary[character]
    return lambda text: table[np.frombuffer(text.encode(), np.uint8)]
