"""Train the byte-pair tokenizer of the docs-* workloads (Sennrich et al., 2015, arXiv:1508.07909), on bytes."""

import json
from pathlib import Path
from typing import Any

from whet.workloads.docs_text import START, TOKENIZER, running_text, tokenizers

VOCAB_SIZE = 2048


def train_tokenizer() -> Any:
    """Train a tokenizers.Tokenizer on the training text and return it. The same text gives the same tokenizer."""
    package = tokenizers()
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[START],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),  # any text can be written
        show_progress=False,
    )
    tokenizer.train_from_iterator([running_text(held_out=False)], trainer)
    return tokenizer


def write_tokenizer(tokenizer: Any, directory: Path, max_length: int) -> None:
    """Write a tokenizer beside a language model, as transformers reads it.

    Args:
        tokenizer: A tokenizers.Tokenizer.
        directory: The directory of the model.
        max_length: The most tokens of a text.
    """
    tokenizer.save(str(directory / TOKENIZER), pretty=False)
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": START,
            "eos_token": START,
            "pad_token": START,
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
        },
    )


def special_ids(tokenizer: Any) -> dict[str, int]:
    """Return the ids of special tokens, by their names in a config.json."""
    start = tokenizer.token_to_id(START)
    return {"bos_token_id": start, "eos_token_id": start, "pad_token_id": start}


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whose keys are sorted."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
