"""Define the interface between engine and model: one step over a flat, ragged batch of tokens of many sequences.

Prefill and decode are not distinguished. In each step, a sequence has some tokens after those that the model has
already read. State that grows with the tokens is kept in blocks, which the engine hands out. State of fixed size
(recurrent state, a memory bank) is kept in rows, one for each sequence. A model has one of these kinds, or both.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """Hold T tokens of S sequences. The tokens of a sequence are next to each other, in order. All arrays are int32.

    Attributes:
        token_ids: The tokens [T].
        positions: The place of each token in its sequence [T]. 0 begins the sequence, and resets its state of fixed
            size.
        query_start: Sequence s has the tokens query_start[s] up to, but without, query_start[s + 1]. [S + 1].
        context_len: The tokens of each sequence, including those of this step [S].
        block_tables: The blocks of each sequence in order [S, B]. Entries beyond its context have no meaning.
        state_rows: The row of each sequence's state of fixed size [S].
        logit_rows: The indices, 0 to T - 1, of the tokens whose logits are wanted [R].
    """

    token_ids: Ints
    positions: Ints
    query_start: Ints
    context_len: Ints
    block_tables: Ints
    state_rows: Ints
    logit_rows: Ints


class ServedModel(Protocol):
    """Define a model that an engine can run.

    The results for a sequence must not depend on the other sequences in a step, nor on how its tokens are divided into
    steps, except for rounding. The implementation says how large the rounding is.
    """

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens in the vocabulary."""

    @property
    def max_model_len(self) -> int:
        """Return the most tokens, prompt and output together, that a sequence may have."""

    @property
    def block_size(self) -> int:
        """Return the number of tokens in a block."""

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of a block, or 0 if no state grows with the tokens."""

    @property
    def bytes_per_state(self) -> int:
        """Return the bytes of a sequence's state of fixed size, or 0 if there is none."""

    @property
    def can_rewind(self) -> bool:
        """Return whether a sequence may go back to fewer tokens. Blocks can be overwritten; recurrent state cannot."""

    def allocate(self, num_blocks: int, num_states: int) -> None:
        """Allocate the memory of blocks and states. It is called once, before the first step."""

    def step(self, batch: StepBatch) -> Tensor:
        """Read the tokens of a step.

        Returns:
            The logits after each of `logit_rows`, float32 [R, V]. They are valid until the next step.
        """
