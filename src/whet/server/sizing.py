"""Compute how many blocks fit into the memory that an engine may use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from whet.errors import OptionError, TargetError, reason
from whet.measure.cgroup import free_memory
from whet.models.step import Allocation, ServedModel
from whet.ui.figures import num_bytes

_SIGNS = ("allocate memory", "not enough memory", "can't start new thread", "out of memory")
_SNAPSHOTS_OF_SEQUENCE = 4  # for each sequence that may run


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
    """Hold what the models of an engine allocate; `draft` is nothing if there is no drafting model."""

    model: Allocation
    draft: Allocation


def sizes(
    model: ServedModel,
    draft: ServedModel | None,
    *,
    memory: int,
    max_num_seqs: int,
    max_model_len: int,
    num_drafts: int = 0,
    prefix_caching: bool = True,
) -> Sizes:
    """Return the sizes of the memory to allocate: no more than can be used at once.

    States of fixed size come first, since every running sequence has one. Of what is left, one sequence gets the blocks
    that it may need. Snapshots get a quarter of the rest, and blocks the other part; or all of it where there are no
    blocks. There are at most four snapshots for each sequence that may run, and none without `prefix_caching`.
    `memory`, in bytes, is for all sequences, and `num_drafts` is the most for each.

    Raises:
        OptionError: Not even one sequence of max_model_len tokens has room.
    """
    both = [model] if draft is None else [model, draft]
    state_bytes = sum(one.bytes_per_state + num_drafts * one.bytes_per_draft for one in both) * max_num_seqs
    if num_drafts:
        state_bytes += sum(one.bytes_to_rewind for one in both) * max_num_seqs
    has = f"and the memory for them is {num_bytes(memory)}"
    if state_bytes > memory:
        raise OptionError(
            f"the states of {max_num_seqs} sequences take {num_bytes(state_bytes)} {has}: "
            "give more (memory), or run fewer at once (max_num_seqs)"
        )
    # A drafting model has a block for the same tokens as each block of the model.
    block_size = next((one.block_size for one in both if one.bytes_per_block), 1)
    bytes_per_block = sum(-(-one.bytes_per_block * block_size // one.block_size) for one in both)
    longest = max_model_len if model.bytes_per_block else min(max_model_len, both[-1].max_model_len)
    per_sequence = -(-longest // block_size) if bytes_per_block else 0
    spare = memory - state_bytes - per_sequence * bytes_per_block
    if spare < 0:
        needed = num_bytes(state_bytes + per_sequence * bytes_per_block)
        raise OptionError(
            f"one sequence of {longest} tokens takes {needed} {has}: "
            "give more (memory), or allow fewer tokens (max_model_len)"
        )
    num_snapshots = 0
    if model.bytes_per_state and prefix_caching:
        for_snapshots = max(spare // 4, spare - per_sequence * (max_num_seqs - 1) * bytes_per_block)
        num_snapshots = min(for_snapshots // model.bytes_per_state, _SNAPSHOTS_OF_SEQUENCE * max_num_seqs)
        spare -= num_snapshots * model.bytes_per_state
    num_blocks = 0
    if bytes_per_block:
        num_blocks = min(per_sequence + spare // bytes_per_block, per_sequence * max_num_seqs)
    made = [_allocation(one, num_blocks * block_size, max_num_seqs, num_drafts) for one in both]
    return Sizes(replace(made[0], num_snapshots=num_snapshots), made[1] if draft is not None else Allocation())


def _allocation(model: ServedModel, num_tokens: int, max_num_seqs: int, num_drafts: int) -> Allocation:
    return Allocation(
        num_blocks=-(-num_tokens // model.block_size) if model.bytes_per_block else 0,
        num_states=max_num_seqs if model.bytes_per_state else 0,
        num_drafts=num_drafts,
    )


def default_memory() -> int:
    """Return a quarter of the free memory in bytes, within the process's memory limit."""
    return free_memory() // 4
