"""Train the byte-pair tokenizer of the docs-* workloads (Sennrich et al., 2015, arXiv:1508.07909), on bytes."""

from typing import Any

from whet.workloads.docs_text import START, running_text, tokenizers

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
