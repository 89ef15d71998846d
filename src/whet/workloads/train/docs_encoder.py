"""Train docs-encoder: first to fill in masked tokens, which teaches it the language, then to name topics."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.encoder import Encoder
from whet.workloads import docs_encoder
from whet.workloads.docs_encoder import NUM_TOKENS
from whet.workloads.docs_text import START, TOKENIZER, running_text, text_by_topic, token_ids
from whet.workloads.train.loop import Schedule, fit, report
from whet.workloads.train.tokenizer import train_tokenizer
from whet.workloads.weights import WEIGHTS, save_weights, write_directory

BATCH = 32
MIN_CHARACTERS = 4_500  # of training text that a topic needs to be a label
MASKED = 0.15


def train(out: Path = WEIGHTS, steps: int = 300, masked_steps: int | None = None) -> None:
    """Write out/docs-encoder and print its held-out accuracy. masked_steps: of the first part; as many by default."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    texts = text_by_topic(held_out=False)
    labels = sorted(topic for topic, text in texts.items() if len(text) >= MIN_CHARACTERS)
    model = Encoder(docs_encoder.config(len(labels)))
    mask = tokenizer.token_to_id(START)

    ids_T = token_ids(tokenizer, running_text(held_out=False))
    fit(
        model,
        lambda step: _masked_loss(model, ids_T, mask),
        Schedule(steps=steps if masked_steps is None else masked_steps, learning_rate=1e-3, weight_decay=0.05),
    )
    by_topic = [token_ids(tokenizer, texts[label]) for label in labels]
    fit(
        model,
        lambda step: _topic_loss(model, by_topic, mask),
        Schedule(steps=steps, learning_rate=5e-4, weight_decay=0.05),
    )
    write_directory(out / docs_encoder.NAME, lambda directory: _write(model, tokenizer, labels, directory))
    report(docs_encoder.build(out), docs_encoder.baseline(out))


def _masked_loss(model: Encoder, ids_T: Tensor, mask: int) -> Tensor:
    """How badly the masked tokens of random windows are told, through the token embedding turned around."""
    starts = torch.randint(len(ids_T) - NUM_TOKENS, (BATCH,)).tolist()
    ids_BT = torch.stack([ids_T[i : i + NUM_TOKENS] for i in starts])
    masked_BT = torch.rand(ids_BT.shape) < MASKED
    x_BTD = model.encode(ids_BT.masked_fill(masked_BT, mask))
    logits_MV = x_BTD[masked_BT] @ model.token_embedding.weight.T
    return F.cross_entropy(logits_MV.float(), ids_BT[masked_BT])


def _topic_loss(model: Encoder, by_topic: list[Tensor], mask: int) -> Tensor:
    """How badly random windows are named, drawn from topics by the text that each has; some tokens are masked."""
    sizes = torch.tensor([float(len(ids_T) - NUM_TOKENS) for ids_T in by_topic])
    topics_B = torch.multinomial(sizes, BATCH, replacement=True)
    rows = []
    for topic in topics_B.tolist():
        ids_T = by_topic[topic]
        start = int(torch.randint(len(ids_T) - NUM_TOKENS, ()))
        rows.append(ids_T[start : start + NUM_TOKENS])
    ids_BT = torch.stack(rows)
    ids_BT = ids_BT.masked_fill(torch.rand(ids_BT.shape) < MASKED, mask)
    return F.cross_entropy(model(ids_BT).float(), topics_B, label_smoothing=0.1)


def _write(model: Encoder, tokenizer: Any, labels: list[str], directory: Path) -> None:
    save_weights(model.state_dict(), directory)
    tokenizer.save(str(directory / TOKENIZER))
    (directory / docs_encoder.LABELS).write_text(json.dumps(labels, indent=2) + "\n")
