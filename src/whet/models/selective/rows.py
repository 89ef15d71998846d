"""Run a selective state-space model for an engine in PyTorch, one sequence of a step after the other."""

from whet.models.options import checked_length
from whet.models.selective.reference import Selective
from whet.models.selective.state import SelectiveState
from whet.models.state_rows import ServedInRows


class RowsOfStates(ServedInRows[SelectiveState]):
    """Run a readable model as a ServedModel. Rounding depends on how many tokens of a sequence a step has.

    Raises:
        OptionError: max_model_len is out of range.
    """

    def __init__(self, model: Selective, max_model_len: int | None = None) -> None:
        super().__init__(
            model,
            vocab_size=model.config.vocab_size,
            max_model_len=checked_length(max_model_len),
            bytes_per_state=model.new_state().num_bytes,
            share=lambda state: SelectiveState(state.layers, state.num_tokens),
        )
