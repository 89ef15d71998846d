"""Hold the options by which a model is loaded for an engine."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bf16", "fp32"]
WeightBits = Literal["as-is", "int8", "int4"]
KvBits = Literal["as-is", "int8"]


@dataclass(frozen=True)
class ServingOptions:
    """Hold the options that all families have.

    Attributes:
        dtype: The number format of state, and of weights that are not quantised.
        weights: The format of the weights: unchanged, or in 8 or 4 bits.
        kv: The format of keys and values.
        max_model_len: The most tokens of a sequence. By default, the model's own limit.
    """

    dtype: Dtype = "bf16"
    weights: WeightBits = "as-is"
    kv: KvBits = "as-is"
    max_model_len: int | None = None
