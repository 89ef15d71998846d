"""A tiny run of whet train: a text that can be learnt, and a model that learns it in seconds."""

import random
from pathlib import Path
from typing import Any

from whet.trainer.config import TrainConfig, checked_config

WORDS = "the sharp stone whets a blade and every edge holds until night falls over hills".split()


def text(num_words: int = 6000, seed: int = 0) -> str:
    """Return sentences in which each word decides the next one, but for one in ten."""
    generator = random.Random(seed)
    found, word = [], 0
    for _ in range(num_words):
        word = generator.randrange(len(WORDS)) if generator.random() < 0.1 else (word + 1) % len(WORDS)
        found.append(WORDS[word] + (".\n" if generator.random() < 0.05 else ""))
    return " ".join(found)


def tables(place: Path, **changes: Any) -> dict[str, Any]:
    """Return the tables of a configuration whose data lies in a directory; a change replaces keys of its table."""
    file = place / "text.txt"
    if not file.is_file():
        file.write_text(text(), encoding="utf-8")
    found: dict[str, Any] = {
        "out": str(place / "run"),
        "steps": 12,
        "model": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
        "data": {
            "train": [str(file)],
            "tokenizer": "characters",
            "sequence_length": 32,
            "cache": str(place / "cache"),
        },
        "batch": {"global_batch_size": 8},
        "optimizer": {"lr": 1e-2},
        "schedule": {"warmup_steps": 2},
        "evaluation": {"eval_interval": 6, "num_rows": 16},
        "checkpoints": {"save_interval": 3},
        "log": {"log_interval": 1},
    }
    for name, value in changes.items():
        found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    return found


def config(place: Path, **changes: Any) -> TrainConfig:
    """Return such a configuration."""
    return checked_config(tables(place, **changes), "test")
