"""What `whet tune` needs to know of this training: the model with its loss, the batches, and a held-out score.

whet tune fast/workload.py:workload --out trained
"""

import random

import torch
from data import encode_batch, load_examples
from losses import k_token_loss
from models import PromptEncoder, load_decoder
from torch import nn

from whet import Quality, TrainingWorkload
from whet.core.workload.training import OutputLoss

BATCH, CONTEXT_TOKENS, TARGET_TOKENS = 16, 96, 8
LEARNING_RATE = 1e-3


class Continuation(nn.Module):
    """Hold all that a step computes with: the encoder that learns, and the frozen decoder that writes on from it."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, context_ids, target_ids):
        """Return the loss of a batch: contexts [B, 96], targets [B, 8]."""
        prefix = self.encoder(self.decoder.get_input_embeddings()(context_ids))
        return k_token_loss(self.decoder, prefix, target_ids, target_ids.shape[1])


class Batches:
    """Yield batches of (context ids, target ids), tokenised once, in the first pass in the order of train.py."""

    def __init__(self, tokenizer, examples, batch_size=BATCH):
        self.contexts = encode_batch(tokenizer, [context for context, _ in examples], CONTEXT_TOKENS)
        self.targets = encode_batch(tokenizer, [target for _, target in examples], TARGET_TOKENS)
        self.batch_size = batch_size

    def __iter__(self):
        order = list(range(len(self.contexts)))
        random.shuffle(order)
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            rows = order[start : start + self.batch_size]
            yield self.contexts[rows], self.targets[rows]


def workload():
    """Return the training run of train.py with its defaults."""
    torch.manual_seed(0)
    decoder, tokenizer = load_decoder("cpu")
    encoder = PromptEncoder(decoder.config.hidden_size)
    held_out = list(Batches(tokenizer, load_examples(10_000, held_out=True)))

    def held_out_loss(predict):
        return [float(predict(*batch)) for batch in held_out]

    return TrainingWorkload(
        model=Continuation(encoder, decoder),
        loss=OutputLoss(),  # the model returns its loss
        optimizer=lambda parameters: torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=LEARNING_RATE),
        batches=Batches(tokenizer, load_examples(2000)),
        evaluation=Quality("held-out loss", held_out_loss, higher_is_better=False),
        num_samples=BATCH,
        name="latentwire",
    )
