"""Make a long-term-memory decoder with new weights, and say how such models are trained."""

from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.reference import Ltm, initialise
from whet.models.trainable import Trainable

TRAINABLE = Trainable(
    config=LtmConfig,
    build=Ltm,
    initialise=initialise,
    file_name=str,
    architectures={"ltm": "LtmForCausalLM"},
    dropped=("AddedToStream", "GatedMLP"),
    size_keys=("hidden_size", "intermediate_size", "num_hidden_layers"),
)
"""Say how long-term-memory decoders are trained. A row is one text: documents that share one cannot be kept apart."""

fresh_ltm = TRAINABLE.fresh
