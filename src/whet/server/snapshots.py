"""Keep snapshots of states of fixed size, so that requests go on from the state after a beginning that they share.

Such a state cannot be cut to fewer tokens as blocks can. A snapshot is a copy of it at one position, a multiple of the
size of hashed blocks, under the hash of all tokens before. It is taken between steps, so chunks of prompts end where
one is due:

- at the end of the last full block of a prompt, for the next request with the same prompt;
- where a prompt parts from those before it: its first blocks are known, the next one is not, and there is no snapshot.
  So the third request with a common beginning finds one;
- in long prompts, every few hundred tokens, for beginnings that nobody has shared yet and for preempted requests;
- in an output, every few dozen tokens, for the next turn of a conversation. The next of these takes the place of the
  last one, unless another request has used that.

Snapshots have rows of their own, as many as the engine gives them. If no row is free, the snapshot goes that has not
been taken or used for longest. Those within one prompt are so far apart that they take at most a quarter of the rows,
so that a long prompt does not displace what others share. No snapshot is taken of few tokens, which cost little.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from whet.server.prefixes import PrefixHashes
from whet.server.records import agree
from whet.server.request import UNLIMITED, Request

_MOST_KNOWN = 2**16  # hashes of prompts' blocks that are remembered, to see where prompts part


@dataclass(slots=True)
class _Snapshot:
    """Hold where a snapshot lies, and whether a request has gone on from it."""

    row: int
    position: int
    is_used: bool = False


class Snapshots:
    """Take snapshots, find them, and drop them. It is not thread-safe: only the engine's thread uses it.

    Args:
        hashes: Names the beginnings. Its blocks have the size of the model's.
        copy: Copies a state from a row to another: `copy_state` of the model.
        least: The fewest tokens of a snapshot.
        interval: Tokens between two snapshots within a prompt, or more if the prompt is long.
        rolling: Tokens between two snapshots within an output.
    """

    def __init__(
        self,
        rows: range,
        hashes: PrefixHashes,
        copy: Callable[[int, int], None],
        *,
        least: int = 64,
        interval: int = 512,
        rolling: int = 64,
    ) -> None:
        self._rows, self._hashes, self._copy = rows, hashes, copy
        self._size = hashes.block_size
        self._least, self._interval, self._rolling = least, self._blocks(interval), self._blocks(rolling)
        self._kept: OrderedDict[bytes, _Snapshot]  # the first has not been taken or used for longest
        self._free: list[int]
        self._known: OrderedDict[bytes, None]  # hashes of the blocks of prompts, the oldest first
        self.reset()

    def reset(self) -> None:
        self._kept, self._known = OrderedDict(), OrderedDict()
        self._free = list(self._rows)[::-1]

    def find(self, request: Request, limit: int) -> int:
        """Return the longest beginning of a request, at most `limit` tokens, that has a snapshot; 0 for none.

        At least the request's last token is left to compute.
        """
        if not self._kept or request.wants_prompt_logprobs:
            return 0
        for index in reversed(range(min(limit, len(request.token_ids) - 1) // self._size)):
            if self._hashes.of(request, index) in self._kept:
                return (index + 1) * self._size
        return 0

    def begin(self, request: Request, found: int) -> None:
        """Let a request that has a row go on from the snapshot of `found` tokens, and see where its prompt parts."""
        if found:
            digest = self._hashes.of(request, found // self._size - 1)
            self._kept.move_to_end(digest)
            snapshot = self._kept[digest]
            snapshot.is_used = True
            self._copy(snapshot.row, request.row)
            request.num_computed = found
        if not request.num_preemptions:
            request.parting = self._know(request)

    def next_place(self, request: Request) -> int:
        """Return the next position in a request's prompt where a snapshot is due; UNLIMITED if there is none."""
        done = request.num_computed
        interval = self._interval_of(request)
        following = (done // interval + 1) * interval
        places = [request.parting, self._last_full(request), following if following < request.num_prompt else 0]
        return min([place for place in places if place > done and place >= self._least], default=UNLIMITED)

    def draft_room(self, request: Request) -> int:
        """Return how many tokens, its last one and drafts, a request may have so that no due snapshot is missed.

        Drafts are not settled before the next step. So the tokens that are known may not jump over a place.
        """
        return self._rolling - len(request.token_ids) % self._rolling

    def take(self, request: Request, settled: int) -> None:
        """Take a snapshot of a request after a step if one is due at its settled position."""
        if settled % self._size or not self._is_due(request, settled):
            return
        digest = self._hashes.of(request, settled // self._size - 1)
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return
        is_output = settled > request.num_prompt
        if is_output:
            self._drop(request.rolling_snapshot)
        row = self._free.pop() if self._free else self._kept.popitem(last=False)[1].row
        self._copy(request.row, row)
        self._kept[digest] = _Snapshot(row, settled)
        if is_output:
            request.rolling_snapshot = digest

    def check(self) -> None:
        """Raise AssertionError unless each row is free or holds one snapshot, at a place where one may lie."""
        rows = [snapshot.row for snapshot in self._kept.values()]
        agree("rows of snapshots", sorted(rows + self._free), list(self._rows))
        for snapshot in self._kept.values():
            agree(f"tokens of a block beyond snapshot {snapshot.row}", snapshot.position % self._size, 0)
            agree(f"snapshot {snapshot.row} has enough tokens", snapshot.position >= self._least, True)

    def _is_due(self, request: Request, settled: int) -> bool:
        if settled < self._least:
            return False
        if settled > request.num_prompt:
            return settled % self._rolling == 0
        return settled in (request.parting, self._last_full(request)) or settled % self._interval_of(request) == 0

    def _know(self, request: Request) -> int:
        """Remember the blocks of a prompt, and return how many of its first tokens other prompts have had."""
        num_common = 0
        for index in range(self._last_full(request) // self._size):
            digest = self._hashes.of(request, index)
            if digest in self._known and num_common == index:
                num_common = index + 1
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return num_common * self._size

    def _drop(self, digest: bytes | None) -> None:
        """Free the row of a snapshot that no other request has used."""
        if digest is not None and digest in self._kept and not self._kept[digest].is_used:
            self._free.append(self._kept.pop(digest).row)

    def _last_full(self, request: Request) -> int:
        """Return the end of the last full block after which a token of the prompt is left."""
        return (request.num_prompt - 1) // self._size * self._size

    def _interval_of(self, request: Request) -> int:
        return max(self._interval, self._blocks(-(-request.num_prompt * 4 // len(self._rows))))

    def _blocks(self, num_tokens: int) -> int:
        """Return a number of tokens, rounded up to whole blocks."""
        return -(-num_tokens // self._size) * self._size
