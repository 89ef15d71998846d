"""What an engine asks of a model: one step over a flat, ragged batch of tokens of many sequences.

There is no prefill and no decode: a sequence takes part in a step with some tokens after those that the model has
already seen. State that grows with the tokens lies in blocks that the engine hands out; state of fixed size (recurrent,
a memory bank) in rows, one a sequence. A model has either or both.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """T tokens of S sequences; the tokens of a sequence stand side by side, in order. All arrays are int32.

    token_ids    [T]
    positions    [T]      of each token in its sequence; 0 starts it, and any state of fixed size with it
    query_start  [S + 1]  sequence s has the tokens query_start[s] up to query_start[s + 1]
    context_len  [S]      tokens of each sequence, those of this step included
    block_tables [S, B]   the blocks of each sequence in order; what lies beyond its context may hold anything
    state_rows   [S]      the row of each sequence's state of fixed size
    logit_rows   [R]      the tokens, as indices into the T, whose logits are wanted
    """

    token_ids: Ints
    positions: Ints
    query_start: Ints
    context_len: Ints
    block_tables: Ints
    state_rows: Ints
    logit_rows: Ints


class ServedModel(Protocol):
    """A model that an engine can run.

    The results for one sequence may not depend on which others share the step, nor on how its tokens are spread over
    steps, beyond the rounding that the implementation states.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_model_len(self) -> int:
        """Tokens, prompt and output together, that a sequence may have."""

    @property
    def block_size(self) -> int:
        """Tokens that one block holds."""

    @property
    def bytes_per_block(self) -> int:
        """0: no state that grows with the tokens."""

    @property
    def bytes_per_state(self) -> int:
        """0: no state of fixed size."""

    @property
    def can_rewind(self) -> bool:
        """Whether a sequence may go back to fewer tokens: its blocks are just overwritten. A recurrent state cannot."""

    def allocate(self, num_blocks: int, num_states: int) -> None:
        """Make room; called once, before the first step."""

    def step(self, batch: StepBatch) -> Tensor:
        """Take in the tokens; float32 logits [R, V] after each of `logit_rows`, valid until the next step."""
