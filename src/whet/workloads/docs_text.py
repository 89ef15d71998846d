"""Provide text that comes with Python: the language reference that `help()` shows, with a fixed split.

The text differs a little between Python versions. A hash of a paragraph's first words decides whether it is held out.
So it is on the same side in every version, whatever was added, removed or edited around it or further down in it.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics as TOPICS
from typing import Any

import torch
from torch import Tensor

from whet.core.tokenizer_files.reading import library

TOKENIZER = "tokenizer.json"
START = "<|start|>"  # the tokenizer's one special token, id 0

_HELD_OUT = 64  # of 256 values of a hash byte: a quarter of the text
_NUM_WORDS = 6


def is_held_out(paragraph: str) -> bool:
    """Return whether a paragraph is kept from training. That depends on its first words alone."""
    words = re.findall(r"\w+", paragraph.lower())[:_NUM_WORDS]
    return hashlib.sha256(" ".join(words).encode()).digest()[0] < _HELD_OUT


def paragraphs(topics: Mapping[str, str] = TOPICS) -> dict[str, frozenset[str]]:
    """Return each different paragraph, in order, with the topics it occurs in: topics quote one another at length."""
    found: dict[str, set[str]] = {}
    for topic in sorted(topics):
        for paragraph in re.split(r"\n(?:[ \t]*\n)+", topics[topic]):
            if paragraph.strip():
                found.setdefault(paragraph.strip("\n"), set()).add(topic)
    return {paragraph: frozenset(names) for paragraph, names in found.items()}


def running_text(*, held_out: bool, topics: Mapping[str, str] = TOPICS) -> str:
    """Return the paragraphs of one side, each once, with a blank line between them."""
    return "\n\n".join(p for p in paragraphs(topics) if is_held_out(p) == held_out)


def text_by_topic(*, held_out: bool, topics: Mapping[str, str] = TOPICS) -> dict[str, str]:
    """Return, by topic, the paragraphs of one side that occur in that topic only."""
    found: dict[str, list[str]] = {}
    for paragraph, names in paragraphs(topics).items():
        if len(names) == 1 and is_held_out(paragraph) == held_out:
            found.setdefault(next(iter(names)), []).append(paragraph)
    return {topic: "\n\n".join(parts) for topic, parts in found.items()}


def tokenizers() -> Any:
    """Return the tokenizers package, or raise MissingExtra where it is not installed."""
    return library("examples", "the text of the docs-* workloads")


def load_tokenizer(directory: Path) -> Any:
    """Return a workload's byte-pair tokenizer, a tokenizers.Tokenizer."""
    return tokenizers().Tokenizer.from_file(str(directory / TOKENIZER))


def token_ids(tokenizer: Any, text: str) -> Tensor:
    """Return the token ids of a text, int64 [T]."""
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64)


def windows(ids_T: Tensor, width: int, stride: int) -> Tensor:
    """Return each run of `width` tokens that starts at a multiple of `stride`: [T] -> [windows, width]."""
    if len(ids_T) < width:
        return ids_T.new_empty(0, width)
    return ids_T.unfold(0, width, stride)


def num_bytes(tokenizer: Any, ids: Tensor) -> int:
    """Return how many bytes of text tokens stand for: a byte-level token is written with one character for each."""
    return sum(len(tokenizer.id_to_token(i)) for i in ids.flatten().tolist())
