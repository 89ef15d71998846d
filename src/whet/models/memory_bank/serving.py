"""Open a long-term-memory decoder for an engine, in PyTorch."""

import logging
from pathlib import Path

import torch

from whet.errors import OptionError
from whet.models.memory_bank.reference import Ltm, load_ltm
from whet.models.memory_bank.state import LtmState
from whet.models.options import ServingOptions
from whet.models.selective.state import checked_length
from whet.models.state_rows import ServedInRows
from whet.models.step import ServedModel

_log = logging.getLogger("whet.models")

_TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}


class RowsOfMemories(ServedInRows[LtmState]):
    """Run a readable model as a ServedModel. Rounding depends on how many tokens of a sequence a step has.

    Args:
        model: The model.
        max_model_len: The most tokens of a sequence.

    Raises:
        OptionError: max_model_len is out of range.
    """

    def __init__(self, model: Ltm, max_model_len: int | None = None) -> None:
        config, state = model.config, model.new_state(slots=model.config.max_memory_slots or None)
        segment = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        segment *= (config.attention_block_size - 1) * model.embed_tokens.weight.element_size()
        super().__init__(
            model,
            vocab_size=config.vocab_size,
            max_model_len=checked_length(max_model_len),
            bytes_per_state=state.num_bytes + segment,
            share=lambda state: LtmState(state.layers, state.num_tokens),
        )


def open_ltm(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a long-term-memory decoder from a directory.

    Raises:
        TargetError: The directory holds no such model that can be run.
        OptionError: An option does not fit: keys and values last for a segment alone, and are not rounded.
    """
    if options.kv != "as-is":
        raise OptionError(f"kv={options.kv}: an ltm model keeps the keys and values of a segment alone; leave kv out")
    if options.weights != "as-is":
        raise OptionError(f"weights={options.weights} needs whet's own kernels, which do not run ltm models")
    _log.warning("running in torch: whet has no kernels for ltm models")
    return RowsOfMemories(load_ltm(directory, _TORCH[options.dtype]), options.max_model_len)
