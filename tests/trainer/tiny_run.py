"""A tiny run of whet train: a text that can be learnt, and a model that learns it in seconds."""

import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

from whet.trainer.config import TrainConfig, checked_config
from whet.trainer.loop import run
from whet.trainer.result import TrainResult
from whet.trainer.setup import set_up
from whet.trainer.tokens.tokenizer import load_tokenizer

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


def base_model(place: Path, **changes: Any) -> Path:
    """Return the directory of a model of whet's own with drawn weights, and of its tokenizer of characters."""
    return _written(place, "base", tables(place, **changes))


def teacher_model(place: Path, **model: Any) -> Path:
    """Return the directory of a wider and deeper model with the same tokenizer."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 4, **model}
    return _written(place, "teacher", tables(place, model=sizes, data={"sequence_length": 16}))


def _written(place: Path, name: str, raw: dict[str, Any]) -> Path:
    directory = place / name
    directory.mkdir()
    setup = set_up(checked_config(raw, name), lambda line: None)
    setup.model.write(directory, setup.model.module.state_dict(), {})
    setup.data.write_tokenizer(directory)
    return directory


def gpt2(place: Path, tokenizer: Path) -> Path:
    """Return the directory of a small GPT-2 of transformers with drawn weights, and the tokenizer of another model."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    found = place / "gpt2"
    ids = load_tokenizer(tokenizer).num_ids
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    made = GPT2Config(vocab_size=ids, n_embd=32, n_layer=2, n_head=2, n_positions=64, **ends)  # type: ignore[arg-type]
    GPT2LMHeadModel(made).save_pretrained(found)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, found / name)
    return found


def trained(made: TrainConfig, *, resume: bool = False, stop_at: int | None = None) -> TrainResult:
    """Train, and ask for the end by a signal once a step is made."""

    def say(line: str) -> None:
        if stop_at is not None and line.startswith("step ") and int(line.split()[1].partition("/")[0]) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    return run(set_up(made, lambda line: None), resume=resume, say=say)
