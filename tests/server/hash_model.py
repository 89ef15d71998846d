"""A ServedModel whose logits depend on every token before, read back through its blocks.

What it stores for a token mixes the token with its position. A wrong table, a stale or overwritten block, a wrong
position or context length, or a draft's state left behind: any of them changes the hash, and with it the output. The
same logits can be had without blocks from a list of tokens: `logits_after`, which is what the tests compare with.

One token is likely after each, so that outputs repeat themselves and drafts are often right; the hash decides the rest.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.models.step import Allocation, StepBatch, WithoutStates

_GARBAGE = np.uint64(0xBAD0BAD0BAD0BAD0)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Any good hash; not the one that sampling uses."""
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


class HashModel(WithoutStates):
    """liking: what the likely next token has above the others' 0 to 1. seed: of the others.

    fail_at: steps that raise. nan_after: tokens after which the logits are no numbers.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 40,
        block_size: int = 4,
        max_model_len: int = 64,
        can_rewind: bool = True,
        liking: float = 0.7,
        seed: int = 1,
        fail_at: Sequence[int] = (),
        nan_after: Sequence[int] = (),
    ) -> None:
        self.vocab_size, self.block_size, self.max_model_len = vocab_size, block_size, max_model_len
        self.can_rewind = can_rewind
        self.bytes_per_block = 8 * block_size
        self.num_steps = self.num_tokens = 0
        self._liking, self._seed = liking, np.uint64(seed)
        self._fail_at, self._nan_after = set(fail_at), set(nan_after)
        self._cells = np.zeros((0, block_size), np.uint64)

    def allocate(self, room: Allocation) -> None:
        self._cells = np.full((room.num_blocks, self.block_size), _GARBAGE)

    def step(self, batch: StepBatch) -> Tensor:
        self.num_steps += 1
        self.num_tokens += len(batch.token_ids)
        if self.num_steps in self._fail_at:
            raise RuntimeError("the model broke")
        hashes = np.zeros(len(batch.token_ids), np.uint64)
        for s in range(len(batch.context_len)):
            first, end, context = batch.query_start[s], batch.query_start[s + 1], batch.context_len[s]
            positions = batch.positions[first:end]
            if positions.tolist() != list(range(context - (end - first), context)):
                raise AssertionError(f"positions {positions} of a context of {context}")
            blocks = batch.block_tables[s, positions // self.block_size]
            self._cells[blocks, positions % self.block_size] = cells(batch.token_ids[first:end], positions)
            table = batch.block_tables[s, : -(-context // self.block_size)]
            hashes[first:end] = np.cumsum(self._cells[table].reshape(-1)[:context])[positions]
        if batch.query_start[-1] != len(batch.token_ids):
            raise AssertionError("tokens that belong to nobody")
        return self._logits(hashes[batch.logit_rows], batch.token_ids[batch.logit_rows])

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        """The logits after a whole sequence: float32 [V]."""
        ids = np.array(token_ids, np.int32)
        total = np.cumsum(cells(ids, np.arange(len(ids))))[-1:]
        return self._logits(total, ids[-1:])[0]

    def _logits(self, hashes_R: NDArray[np.uint64], last_R: NDArray[np.int32]) -> Tensor:
        tokens_V = np.arange(self.vocab_size, dtype=np.uint64)
        mixed_RV = mix(mix(hashes_R + self._seed)[:, None] + tokens_V * np.uint64(0x9E3779B97F4A7C15))
        logits_RV = (mixed_RV >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        likely_R = (last_R * 5 + 3) % self.vocab_size
        logits_RV[np.arange(len(last_R)), likely_R] += np.float32(self._liking)
        logits_RV *= 4
        logits_RV[np.isin(last_R, list(self._nan_after))] = np.nan
        return torch.from_numpy(logits_RV)


def cells(token_ids: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """What is stored for tokens at their positions."""
    return mix(token_ids.astype(np.uint64) * np.uint64(1_000_003) + positions.astype(np.uint64) + np.uint64(1))
