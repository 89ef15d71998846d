"""Define the interface between engine and model: one step over a flat, ragged batch of tokens of many sequences.

Prefill and decode are not distinguished. In each step, a sequence has some tokens after those that the model has
already read. State that grows with the tokens is kept in blocks, which the engine hands out. State of fixed size
(recurrent state, a memory bank) is kept in rows, one for each sequence. A model has one of these kinds, or both.

The last tokens of a step may be drafts, of which the next step takes some back: it then begins at an earlier position.
Entries in blocks are overwritten. A state of fixed size has to be again what it was there, bit for bit. `settled_len`
says how far back a sequence may go. Further rows hold snapshots: copies of a row, from which another sequence goes on.
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
        settled_len: No later step of the sequence begins before this position [S], unless at 0. It never falls while a
            sequence goes on. It is context_len for prompts and for tokens that are no drafts. Tokens of this step and
            of earlier ones from this position on are drafts, which a later step may take back. In a step that reads
            only drafts, as those of a drafting model do, it is below the step's first position.
        block_tables: The blocks of each sequence in order [S, B]. Entries beyond its context have no meaning.
        state_rows: The row of each sequence's state of fixed size [S].
        logit_rows: The indices, 0 to T - 1, of the tokens whose logits are wanted [R].
    """

    token_ids: Ints
    positions: Ints
    query_start: Ints
    context_len: Ints
    settled_len: Ints
    block_tables: Ints
    state_rows: Ints
    logit_rows: Ints


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Say what memory a model allocates.

    Attributes:
        num_blocks: The blocks; 0 if no state of the model grows with the tokens.
        num_states: The rows 0 up to, but without, num_states, for states of fixed size of running sequences; 0 if the
            model has no such state.
        num_snapshots: The rows from num_states on. They hold copies of states, and no step runs on them.
        num_drafts: The most tokens of a sequence that are not settled: it has read at most so many tokens beyond its
            settled_len. 0 unless the model can rewind.
    """

    num_blocks: int = 0
    num_states: int = 0
    num_snapshots: int = 0
    num_drafts: int = 0


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
        """Return the number of tokens in a block. Without blocks, snapshots lie at its multiples."""

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of a block, or 0 if no state grows with the tokens."""

    @property
    def bytes_per_state(self) -> int:
        """Return the bytes of a sequence's state of fixed size, or 0 if there is none."""

    @property
    def can_rewind(self) -> bool:
        """Return whether a sequence may go back over drafts, to its settled_len or any place after it."""

    @property
    def bytes_per_draft(self) -> int:
        """Return the bytes that a running sequence's state of fixed size takes more for each draft; often 0."""

    @property
    def bytes_to_rewind(self) -> int:
        """Return the bytes that a running sequence's state takes more, once, where there are drafts; often 0."""

    def allocate(self, room: Allocation) -> None:
        """Allocate the memory of blocks and states. It is called once, before the first step."""

    def copy_state(self, source_row: int, target_row: int) -> None:
        """Copy a state of fixed size to another row, the place in its sequence included.

        The source is a row whose tokens are all settled, or else its state at settled_len is copied. A step of the
        target's sequence then begins at that position. It is called between steps, only for models with such states.
        """

    def step(self, batch: StepBatch) -> Tensor:
        """Read the tokens of a step.

        Returns:
            The logits after each of `logit_rows`, float32 [R, V]. They are valid until the next step.
        """


class WithoutStates:
    """Give a ServedModel the members of one that keeps blocks only."""

    bytes_per_state = 0
    bytes_per_draft = 0
    bytes_to_rewind = 0
    can_rewind = True

    def copy_state(self, source_row: int, target_row: int) -> None:
        raise TypeError(f"{type(self).__name__} has no state of fixed size")
