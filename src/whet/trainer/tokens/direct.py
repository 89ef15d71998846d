"""Encode characters and bytes by a table, some hundred times as fast as a tokenizer that goes through them one by one.

whet's tokenizers of characters and of bytes are ordinary tokenizers of the tokenizers library. What is done here gives
the same token ids. A text that holds an added token, such as an end of text, is left to the tokenizer.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.core.tokenizer_files.byte_alphabet import BYTE_OF

CHARACTER = r"[\s\S]"  # the expression by which whet's tokenizer of characters splits
_NUM_CHARACTERS = 0x110000

Encode = Callable[[str], NDArray[np.uint32]]


def direct_encoder(tokenizer: Any, described: Mapping[str, Any]) -> Encode | None:
    """Return what encodes texts for a tokenizer of characters or of bytes; None for any other tokenizer.

    Args:
        tokenizer: A tokenizers.Tokenizer.
        described: What `described_by` returned for it.
    """
    by_table = _by_characters(tokenizer, described) or _by_bytes(tokenizer, described)
    if by_table is None:
        return None
    added = [token["content"] for token in described["added_tokens"]]

    def encode(text: str) -> NDArray[np.uint32]:
        if any(token in text for token in added):
            return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)
        return by_table(text)

    return encode


def described_by(tokenizer: Any) -> dict[str, Any]:
    """Return what a tokenizer's tokenizer.json says of it, but for its vocabulary, which takes long to write."""

    def state_of(part: Any) -> Any:
        return None if part is None else json.loads(part.__getstate__())

    names = ("content", "lstrip", "rstrip")
    added = tokenizer.get_added_tokens_decoder().values()
    return {
        "added_tokens": [{name: getattr(token, name) for name in names} for token in added],
        "normalizer": state_of(tokenizer.normalizer),
        "pre_tokenizer": state_of(tokenizer.pre_tokenizer),
        "model": {"type": type(tokenizer.model).__name__, "dropout": getattr(tokenizer.model, "dropout", None)},
    }


def _by_characters(tokenizer: Any, described: Mapping[str, Any]) -> Encode | None:
    split = described["pre_tokenizer"] or {}
    if described["model"]["type"] != "WordLevel" or described["normalizer"] is not None:
        return None
    if (split.get("type"), split.get("behavior"), split.get("pattern")) != ("Split", "Isolated", {"Regex": CHARACTER}):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    unknown = vocabulary.get(tokenizer.model.unk_token)
    if unknown is None:
        return None
    table = np.full(_NUM_CHARACTERS, unknown, np.uint32)
    for token, token_id in vocabulary.items():
        if len(token) == 1:
            table[ord(token)] = token_id
    return lambda text: table[np.frombuffer(text.encode("utf-32-le"), "<u4")]


def _by_bytes(tokenizer: Any, described: Mapping[str, Any]) -> Encode | None:
    split = described["pre_tokenizer"] or {}
    if described["model"]["type"] != "BPE" or described["normalizer"] is not None:
        return None
    if split.get("type") != "ByteLevel" or split.get("add_prefix_space", True):
        return None
    if tokenizer.get_vocab_size(with_added_tokens=False) != len(BYTE_OF):  # with merges, there are more tokens
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if vocabulary.keys() != BYTE_OF.keys():
        return None
    table = np.zeros(256, np.uint32)
    for character, byte in BYTE_OF.items():
        table[byte] = vocabulary[character]
    return lambda text: table[np.frombuffer(text.encode(), np.uint8)]
