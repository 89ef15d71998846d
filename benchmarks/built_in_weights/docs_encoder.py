"""Train docs-encoder. The text is small, so paragraphs are shuffled and tokens masked; no passage comes twice."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.encoder import Encoder
from whet.workloads import WEIGHTS, docs_encoder
from whet.workloads.docs_encoder import NUM_TOKENS
from whet.workloads.docs_text import START, TOKENIZER, load_tokenizer, text_by_topic, token_ids

from .loop import Schedule, fit, report
from .tokenizer import train_tokenizer
from .writing import save_weights, write_directory

BATCH = 32
MIN_CHARACTERS = 4_500  # a topic needs this much training text to be a label
MASKED = 0.6  # in each passage a random share of the tokens is masked, up to this one


def train(out: Path = WEIGHTS, steps: int = 300) -> None:
    """Write out/docs-encoder and print its held-out accuracy."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    texts = text_by_topic(held_out=False)
    labels = sorted(topic for topic, text in texts.items() if len(text) >= MIN_CHARACTERS)
    topics = [_Topic(tokenizer, texts[label]) for label in labels]
    sizes = torch.tensor([float(topic.num_tokens) for topic in topics])
    mask = tokenizer.token_to_id(START)
    model = Encoder(docs_encoder.config(len(labels)))

    def loss(step: int) -> Tensor:
        topics_B = torch.multinomial(sizes, BATCH, replacement=True)
        ids_BT = torch.stack([topics[i].sample() for i in topics_B.tolist()])
        masked_BT = torch.rand(ids_BT.shape) < MASKED * torch.rand(BATCH, 1)
        logits_BK = model(ids_BT.masked_fill(masked_BT, mask))
        return F.cross_entropy(logits_BK.float(), topics_B, label_smoothing=0.1)

    fit(model, loss, Schedule(steps=steps, learning_rate=1e-3, weight_decay=0.05))
    write_directory(out / docs_encoder.NAME, lambda directory: _write(model, tokenizer, labels, directory))
    report(docs_encoder.build(out), baseline(out))


def baseline(weights: Path = WEIGHTS) -> float:
    """Return the accuracy of always naming the topic with the most training text."""
    labels = docs_encoder.load_labels(weights / docs_encoder.NAME)
    train = text_by_topic(held_out=False)
    largest = max(range(len(labels)), key=lambda i: len(train.get(labels[i], "")))
    _, topics_B = docs_encoder.scored_passages(load_tokenizer(weights / docs_encoder.NAME), labels)
    return float((topics_B == largest).float().mean())


class _Topic:
    """Hold the training paragraphs of one topic, as tokens."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.paragraphs = [token_ids(tokenizer, f"\n\n{paragraph}") for paragraph in text.split("\n\n")]
        self.num_tokens = sum(len(ids_T) for ids_T in self.paragraphs)

    def sample(self) -> Tensor:
        """Return a passage from somewhere in the paragraphs in random order, int64 [128]."""
        order = torch.randperm(len(self.paragraphs)).tolist()
        ids_T = torch.cat([self.paragraphs[i] for i in order])
        start = int(torch.randint(len(ids_T) - NUM_TOKENS, ()))
        return ids_T[start : start + NUM_TOKENS]


def _write(model: Encoder, tokenizer: Any, labels: list[str], directory: Path) -> None:
    save_weights(model.state_dict(), directory)
    tokenizer.save(str(directory / TOKENIZER), pretty=False)
    (directory / docs_encoder.LABELS).write_text(json.dumps(labels, indent=2) + "\n")
