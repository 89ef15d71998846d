"""Hold the options by which a model is loaded for an engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whet.errors import OptionError

Dtype = Literal["bf16", "fp32"]
WeightBits = Literal["as-is", "int8", "int4"]
KvBits = Literal["as-is", "int8"]

LONGEST = 2**20
"""The most tokens of a sequence where none are named and the model has no limit of its own."""


@dataclass(frozen=True)
class ServingOptions:
    """Hold the options that all families have.

    Attributes:
        dtype: The number format of state, and of weights that are not quantised.
        weights: The format of the weights: unchanged, or in 8 or 4 bits.
        max_model_len: The most tokens of a sequence. By default, the model's own limit.
        shared_weights: A directory that only this user can use. Processes that load the same model with it share the
            memory of its weights: the first packs them into a file there, and the others map that file.
    """

    dtype: Dtype = "bf16"
    weights: WeightBits = "as-is"
    kv: KvBits = "as-is"
    max_model_len: int | None = None
    shared_weights: Path | str | None = None


def checked_length(max_model_len: int | None, positions: int | None = None) -> int:
    """Return the most tokens of a sequence. By default, it is the model's own limit, `positions`, or else LONGEST.

    Raises:
        OptionError: It is out of range.
    """
    most = LONGEST if positions is None else positions
    length = most if max_model_len is None else max_model_len
    if not 0 < length <= most:
        within = f"1 to {most} tokens"
        if positions is not None:
            within = f"the {within} that the model was made for (max_position_embeddings)"
        raise OptionError(f"max_model_len {length} is not within {within}")
    return length
