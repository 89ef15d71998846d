"""Define docs-gpt-training: a Llama-shaped decoder learns the text of Python's language reference from nothing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from whet.core.workload import Predict, Quality, TrainingWorkload
from whet.core.workload.plain_parameters import plain_parameters
from whet.models.decoder.config import read_config
from whet.models.decoder.fresh import fresh_decoder
from whet.workloads import WEIGHTS, docs_gpt
from whet.workloads.docs_text import START, load_tokenizer, running_text, token_ids, windows
from whet.workloads.shuffled import Shuffled

NAME = "docs-gpt-training"
BATCH = 16  # windows of 128 tokens
LEARNING_RATE, WEIGHT_DECAY, CLIP = 5e-4, 0.1, 1.0
WARM_UP = 100  # steps; without it, two runs that differ by rounding drift apart in their first steps
NUM_HELD_OUT = 48  # windows that are scored


def build(weights: Path = WEIGHTS) -> TrainingWorkload:
    """Return the workload: batches of 16 windows of 128 tokens, AdamW with a warm-up, clipped gradients.

    The score is the mean cross-entropy of held-out text in nats a token; lower is better.
    """
    model = fresh_decoder(read_config(weights / docs_gpt.NAME), torch.Generator().manual_seed(0))
    return learning(model, NAME, weights / docs_gpt.NAME)


def learning(model: nn.Module, name: str, directory: Path) -> TrainingWorkload:
    """Return the workload of a model that learns documentation from nothing.

    The model maps token ids [B, T] to logits [B, T, V]. Its parameters that no product multiplies do not decay.
    The directory is that of the tokenizer.
    """
    tokenizer = load_tokenizer(directory)
    start = tokenizer.token_to_id(START)
    train_BT = windows(token_ids(tokenizer, running_text(held_out=False)), docs_gpt.NUM_TOKENS, docs_gpt.NUM_TOKENS)
    test_BT = windows(token_ids(tokenizer, running_text(held_out=True)), docs_gpt.NUM_TOKENS, docs_gpt.NUM_TOKENS)
    held_out = [(docs_gpt.shift(y_BT, start), y_BT) for y_BT in test_BT[:NUM_HELD_OUT].split(BATCH)]

    def nats(predict: Predict) -> list[float]:
        return [float(_cross_entropy(predict(x_BT), y_BT)) for x_BT, y_BT in held_out]

    def batch(rows: Tensor) -> tuple[Tensor, Tensor]:
        return docs_gpt.shift(train_BT[rows], start), train_BT[rows]

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        plain, known = plain_parameters(model), list(parameters)
        groups: list[dict[str, Any]] = [{"params": [p for p in known if id(p) not in plain]}]
        if plain:
            groups.append({"params": [p for p in known if id(p) in plain], "weight_decay": 0.0})
        return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)

    return TrainingWorkload(
        model=model,
        loss=_loss,
        optimizer=optimizer,
        batches=Shuffled(len(train_BT), BATCH, batch),
        evaluation=Quality("held-out loss", nats, higher_is_better=False),
        clip_norm=CLIP,
        schedule=lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP)),
        num_samples=BATCH,
        name=name,
    )


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x_BT, y_BT = batch
    return _cross_entropy(model(x_BT), y_BT)


def _cross_entropy(logits_BTV: Tensor, y_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), y_BT.flatten())
