"""Define docs-encoder: a BERT-shaped encoder names the topic of Python's language reference that a passage comes from.

Passages are 128 tokens. Paragraphs that several topics share are left out, so that each passage has one answer.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.core.workload import Predict, Quality, Workload
from whet.errors import TargetError
from whet.models.encoder import Encoder, EncoderConfig
from whet.workloads import WEIGHTS
from whet.workloads.docs_text import load_tokenizer, text_by_topic, token_ids, windows
from whet.workloads.weights import load_weights

NAME = "docs-encoder"
BATCH = 8
NUM_TOKENS = 128
STRIDE = 32  # tokens from one held-out passage to the next; they overlap, since there is little text
NUM_HELD_OUT = 400  # passages that are scored: whole batches, in a second or two
NUM_CALIBRATION = 16  # batches
LABELS = "labels.json"


def build(weights: Path = WEIGHTS) -> Workload:
    """Return the workload: batches of 8 passages, scored by the share of held-out ones whose topic is named right."""
    directory = weights / NAME
    tokenizer = load_tokenizer(directory)
    labels = load_labels(directory)
    test_BT, topics_B = scored_passages(tokenizer, labels)
    train_BT, _ = spread(*read_passages(tokenizer, labels, held_out=False, stride=NUM_TOKENS), BATCH * NUM_CALIBRATION)
    batches = list(zip(test_BT.split(BATCH), topics_B.split(BATCH), strict=True))

    def accuracy(predict: Predict) -> Tensor:
        return torch.cat([predict(x_BT).argmax(1) == y_B for x_BT, y_B in batches]).float()

    model = Encoder(config(len(labels)))
    load_weights(model, directory)
    return Workload(
        model=model.eval(),
        inputs=[x_BT for x_BT, _ in batches[:4]],
        quality=Quality("accuracy", accuracy),
        calibration=train_BT.split(BATCH),
        name=NAME,
    )


def config(num_classes: int) -> EncoderConfig:
    return EncoderConfig(vocab_size=2048, num_classes=num_classes, max_tokens=NUM_TOKENS)


def load_labels(directory: Path) -> list[str]:
    """Return the topics a model was trained to name. They ship with it: another Python version may have other ones."""
    labels: list[str] = json.loads((directory / LABELS).read_text())
    return labels


def read_passages(tokenizer: Any, labels: list[str], *, held_out: bool, stride: int) -> tuple[Tensor, Tensor]:
    """Return one side's passages, int64 [B, 128], and the index of each one's topic among the labels, int64 [B]."""
    texts = text_by_topic(held_out=held_out)
    found = [windows(token_ids(tokenizer, texts.get(label, "")), NUM_TOKENS, stride) for label in labels]
    topics_B = torch.repeat_interleave(torch.arange(len(labels)), torch.tensor([len(x_BT) for x_BT in found]))
    return torch.cat(found), topics_B


def spread(passages_BT: Tensor, topics_B: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return `count` of the passages, evenly spread over all topics and shuffled by a fixed seed."""
    if len(passages_BT) < count:
        raise TargetError(f"{NAME}: this Python's documentation has {len(passages_BT)} passages of the {count} needed")
    chosen = torch.linspace(0, len(passages_BT) - 1, count).long()
    chosen = chosen[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    return passages_BT[chosen], topics_B[chosen]


def scored_passages(tokenizer: Any, labels: list[str]) -> tuple[Tensor, Tensor]:
    """Return the held-out passages that are scored, and their topics."""
    return spread(*read_passages(tokenizer, labels, held_out=True, stride=STRIDE), NUM_HELD_OUT)
