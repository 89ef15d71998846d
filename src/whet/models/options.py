"""How a model is loaded for an engine."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bf16", "fp32"]
WeightBits = Literal["as-is", "int8", "int4"]
KvBits = Literal["as-is", "int8"]


@dataclass(frozen=True)
class ServingOptions:
    """Options that every family understands.

    Attributes:
        dtype: The number format of state, and of weights that stay as they are.
        weights: How the weights are kept: as they are, or in 8 or 4 bits.
        kv: How keys and values are kept.
        max_model_len: The most tokens that a sequence may have; what the model takes, if not given.
    """

    dtype: Dtype = "bf16"
    weights: WeightBits = "as-is"
    kv: KvBits = "as-is"
    max_model_len: int | None = None
