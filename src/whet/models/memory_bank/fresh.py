"""Make a long-term-memory decoder with new weights, and say how such models are trained."""

import torch

from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.reference import Ltm, initialise
from whet.models.trainable import Trainable


def fresh_ltm(config: LtmConfig, generator: torch.Generator) -> Ltm:
    """Return a model whose weights are drawn from a generator."""
    model = Ltm(config)
    initialise(model, generator)
    return model


TRAINABLE = Trainable(
    config=LtmConfig,
    build=Ltm,
    fresh=fresh_ltm,
    file_name=str,
    architectures={"ltm": "LtmForCausalLM"},
    dropped=("AddedToStream", "GatedMLP"),
    size_keys=("hidden_size", "intermediate_size", "num_hidden_layers"),
)
"""Say how long-term-memory decoders are trained. A row is one text: documents that share one cannot be kept apart."""
