"""Passages of Python's language reference, as pairs of text: a context, and what comes after it."""

import torch

from whet.workloads.docs_text import running_text

CONTEXT_CHARACTERS = 280
TARGET_CHARACTERS = 60


def load_examples(num_examples, held_out=False):
    """[(context, target)] of plain text, cut from the reference one after another."""
    text = running_text(held_out=held_out)
    width = CONTEXT_CHARACTERS + TARGET_CHARACTERS
    starts = range(0, len(text) - width, width)
    return [(text[i : i + CONTEXT_CHARACTERS], text[i + CONTEXT_CHARACTERS : i + width]) for i in starts][:num_examples]


def encode_batch(tokenizer, texts, length):
    """Token ids [B, length], cut or padded with 0."""
    batch_ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        token_ids = tokenizer.encode(text).ids[:length]
        for column, token_id in enumerate(token_ids):
            batch_ids[row, column] = token_id
    return batch_ids
