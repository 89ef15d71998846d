"""Compute how many blocks fit into the memory that an engine may use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

from whet.errors import OptionError, TargetError, reason
from whet.figures import num_bytes
from whet.measure.cgroup import memory_limit
from whet.models.step import ServedModel

_SIGNS = ("allocate memory", "not enough memory", "can't start new thread", "out of memory")


@contextmanager
def explaining_lack_of_memory() -> Iterator[None]:
    """Turn the various errors that libraries raise when memory runs out into one TargetError."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        is_it = isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _SIGNS)
        if not is_it:
            raise
        raise TargetError(
            f"there is too little memory for this model and its requests ({reason(error)}): take fewer bits "
            "(weights int8 or int4), fewer sequences at once (max_num_seqs), or a smaller model"
        ) from error


class Sizes(NamedTuple):
    """Hold the sizes of an engine's memory.

    Attributes:
        num_blocks: The model's blocks.
        num_states: The rows of the model's state of fixed size.
        num_draft_blocks: The blocks of the drafting model.
    """

    num_blocks: int
    num_states: int
    num_draft_blocks: int


def sizes(
    model: ServedModel, draft: ServedModel | None, *, memory: int | None, max_num_seqs: int, max_model_len: int
) -> Sizes:
    """Return the sizes of the memory to allocate: no more than can be used at once.

    Args:
        model: The model.
        draft: The drafting model, or None.
        memory: The bytes for the state of all sequences. None: a quarter of the free memory.
        max_num_seqs: The most sequences in a step.
        max_model_len: The most tokens of a sequence.

    Raises:
        OptionError: Not even one sequence of max_model_len tokens has room.
    """
    budget = default_memory() if memory is None else memory
    state_bytes = model.bytes_per_state * max_num_seqs
    has = f"and the memory for them is {num_bytes(budget)}"
    if state_bytes > budget:
        raise OptionError(
            f"the states of {max_num_seqs} sequences take {num_bytes(state_bytes)} {has}: "
            "give more (memory), or run fewer at once (max_num_seqs)"
        )
    if not model.bytes_per_block:
        return Sizes(0, max_num_seqs, 0)
    per_sequence = -(-max_model_len // model.block_size)
    bytes_per_block = model.bytes_per_block
    if draft is not None:
        bytes_per_block += -(-draft.bytes_per_block * model.block_size // draft.block_size)
    num_blocks = min((budget - state_bytes) // bytes_per_block, per_sequence * max_num_seqs)
    if num_blocks < per_sequence:
        needed = num_bytes(state_bytes + per_sequence * bytes_per_block)
        raise OptionError(
            f"one sequence of {max_model_len} tokens takes {needed} {has}: "
            "give more (memory), or allow fewer tokens (max_model_len)"
        )
    num_draft_blocks = -(-num_blocks * model.block_size // draft.block_size) if draft is not None else 0
    return Sizes(num_blocks, max_num_seqs if model.bytes_per_state else 0, num_draft_blocks)


def default_memory() -> int:
    """Return a quarter of the free memory in bytes, within the process's memory limit."""
    available: int = psutil.virtual_memory().available
    limit = memory_limit()
    return min(available, limit if limit is not None else available) // 4
