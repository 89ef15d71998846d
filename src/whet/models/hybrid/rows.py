"""Run a hybrid model for an engine in PyTorch, one sequence of a step after the other."""

from whet.models.hybrid.reference import Hybrid
from whet.models.hybrid.state import HybridState
from whet.models.options import checked_length
from whet.models.state_rows import ServedInRows


class RowsOfHybridStates(ServedInRows[HybridState]):
    """Run a readable model as a ServedModel. Rounding depends on how many tokens of a sequence a step has.

    Keys and values lie in the rows too, so that a row counts with the memory of the longest sequence.

    Args:
        max_model_len: The most tokens of a sequence. By default, the model's own limit.

    Raises:
        OptionError: max_model_len is out of range.
    """

    def __init__(self, model: Hybrid, max_model_len: int | None = None) -> None:
        config = model.config
        length = checked_length(max_model_len, config.max_position_embeddings)
        of_a_token = 2 * config.decoder.num_key_value_heads * config.decoder.head_dim * model.lm_head.weight.itemsize
        super().__init__(
            model,
            vocab_size=config.vocab_size,
            max_model_len=length,
            bytes_per_state=model.new_state().num_bytes + len(config.layers_with("attention")) * of_a_token * length,
            share=HybridState.copy,
        )
