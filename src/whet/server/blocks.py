"""Hand out the memory of sequences in blocks of tokens, with reference counts. Equal prefixes share blocks.

All blocks exist from the start. A sequence's table of blocks only grows. Its blocks are released in reverse order: the
end of a sequence is then reused before its beginning, which other sequences are more likely to share. A free block
keeps its content and its hash until it is handed out again. The block that has been free for longest goes first.

A full block is published once all its tokens are computed and verified (no drafts). Its key is a hash of everything
that its content depends on (whet.server.prefixes). Another sequence that begins with the same tokens uses the block.

State of fixed size is kept in rows. Every running sequence has one, which is also its row of `Blocks.tables`.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from whet.server.prefixes import PrefixHashes
from whet.server.records import agree
from whet.server.request import NO_ROW, UNLIMITED, Request


class Blocks:
    """Hand out blocks and rows. It is not thread-safe: only the engine's thread uses it.

    Its attribute `tables`, int32 [num_rows, blocks for max_len tokens], holds each row's blocks in order. `block_size`,
    in tokens, is 0 if no state of the model grows with them. `identity` is that of PrefixHashes.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        max_len: int,
        *,
        identity: str = "",
        prefix_caching: bool = True,
    ) -> None:
        self.num_blocks, self.block_size, self.num_rows, self.max_len = num_blocks, block_size, num_rows, max_len
        self.prefix_caching = prefix_caching and block_size > 0
        self.tables: NDArray[np.int32] = np.zeros((num_rows, self.blocks_for(max_len)), np.int32)
        self._hashes = PrefixHashes(identity, block_size)
        self._references: list[int]
        self._hash_of: list[bytes | None]
        self._published: dict[bytes, int]
        self._free: OrderedDict[int, None]  # the first has been free for longest
        self._free_rows: list[int]
        self.reset()

    def reset(self) -> None:
        """Make everything free, and forget all cached blocks. No request may hold blocks or rows afterwards."""
        self._references = [0] * self.num_blocks
        self._hash_of = [None] * self.num_blocks
        self._published = {}
        self._free = OrderedDict.fromkeys(range(self.num_blocks))
        self._free_rows = list(range(self.num_rows))[::-1]

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Return the share of the blocks that sequences hold, 0 to 1. Without blocks, return the share of the rows."""
        if self.block_size == 0:
            return 1 - len(self._free_rows) / self.num_rows
        return 1 - len(self._free) / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) if self.block_size else 0

    def match(self, request: Request) -> list[int]:
        """Return the published blocks with which the request begins. At least its last token is left to compute."""
        if not self.prefix_caching or request.wants_prompt_logprobs:
            return []
        num_full = (len(request.token_ids) - 1) // self.block_size
        found = []
        for i in range(num_full):
            block = self._published.get(self._hashes.of(request, i))
            if block is None:
                break
            found.append(block)
        return found

    def can_seat(self, request: Request, shared: list[int], reserve: int) -> bool:
        """Return whether a row is free, and enough blocks for all tokens of the request plus `reserve` blocks."""
        if not self._free_rows:
            return False
        waking = sum(1 for block in shared if self._references[block] == 0)  # free now, but not once they are shared
        return self.blocks_for(len(request.token_ids)) - len(shared) + waking + reserve <= len(self._free)

    def seat(self, request: Request, shared: list[int]) -> None:
        """Give the request a row and the shared blocks. Their tokens then count as computed."""
        request.row = self._free_rows.pop()
        for block in shared:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
        self._append(request, shared)
        request.num_computed = len(shared) * self.block_size
        request.num_published = len(shared)
        if self.block_size == 0:
            request.capacity = UNLIMITED

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Add blocks until they hold `num_tokens` tokens. If too few are free, change nothing and return False."""
        wanted = self.blocks_for(num_tokens) - len(request.blocks)
        if wanted <= 0:
            return True
        if wanted > len(self._free):
            return False
        new = []
        for _ in range(wanted):
            block, _none = self._free.popitem(last=False)
            old_hash = self._hash_of[block]
            if old_hash is not None:
                del self._published[old_hash]
                self._hash_of[block] = None
            self._references[block] = 1
            new.append(block)
        self._append(request, new)
        return True

    def publish(self, request: Request) -> None:
        """Let other requests share the full blocks of this one. Its `token_ids` must be verified, without drafts."""
        if not self.prefix_caching or request.num_computed < (request.num_published + 1) * self.block_size:
            return
        num_full = min(request.num_computed, len(request.token_ids)) // self.block_size
        for i in range(request.num_published, num_full):
            digest, block = self._hashes.of(request, i), request.blocks[i]
            if digest not in self._published:  # two requests may compute equal blocks in one step; then both are kept
                self._published[digest] = block
                self._hash_of[block] = digest
        request.num_published = max(request.num_published, num_full)

    def release(self, request: Request) -> None:
        """Release the request's blocks and row. If it returns, it starts from its first token."""
        for block in reversed(request.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
        if request.row != NO_ROW:
            self._free_rows.append(request.row)
        request.blocks = []
        request.row, request.capacity, request.num_computed, request.num_published = NO_ROW, 0, 0, 0

    def check(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError unless records agree with the blocks and rows of `requests`, all that hold any."""
        requests = list(requests)
        held = Counter(block for request in requests for block in request.blocks)
        for block, count in enumerate(self._references):
            agree(f"references of block {block}", count, held[block])
            agree(f"block {block} is free", block in self._free, count == 0)
        agree("free and used blocks", len(self._free) + len(held), self.num_blocks)
        agree("published blocks", len(self._published), sum(h is not None for h in self._hash_of))
        for digest, block in self._published.items():
            agree(f"the hash of block {block}", self._hash_of[block], digest)
        rows = [request.row for request in requests if request.row != NO_ROW]
        agree("rows", sorted(rows + self._free_rows), list(range(self.num_rows)))
        for request in requests:
            agree(f"{request.id}'s table", self.tables[request.row, : len(request.blocks)].tolist(), request.blocks)
            capacity = len(request.blocks) * self.block_size if self.block_size else UNLIMITED
            agree(f"{request.id}'s capacity", request.capacity, capacity)
            agree(f"{request.id}'s blocks are different ones", len(set(request.blocks)), len(request.blocks))
            agree(f"{request.id}'s state has room", request.num_computed <= request.capacity, True)

    def _append(self, request: Request, blocks: list[int]) -> None:
        first = len(request.blocks)
        self.tables[request.row, first : first + len(blocks)] = blocks
        request.blocks.extend(blocks)
        request.capacity = len(request.blocks) * self.block_size
