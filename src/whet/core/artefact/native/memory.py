"""Plan memory: where buffers lie in one arena, so that those that are never needed at once share places."""

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a line of the cache, and the widest vector


@dataclass(frozen=True)
class Life:
    """Describe the steps during which a buffer is needed, from the first to the last, both included."""

    num_bytes: int
    first: int
    last: int


def lay_out(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Return the offset of each buffer, and the bytes that all of them take together.

    The largest come first, each at the lowest offset that is free so long: greedy by size (Pisarchyk and Lee,
    2020, arXiv:2001.03288).
    """
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, Life]] = []  # beginning, end, life, in the order of beginnings
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].num_bytes, i)):
        life = lives[i]
        num_bytes = -(-life.num_bytes // ALIGNMENT) * ALIGNMENT
        offset = 0
        for begin, end, other in placed:
            if other.last < life.first or life.last < other.first:
                continue
            if begin - offset >= num_bytes:
                break
            offset = max(offset, end)
        offsets[i] = offset
        placed.append((offset, offset + num_bytes, life))
        placed.sort(key=lambda item: item[:2])
    return offsets, max((end for _, end, _ in placed), default=0)
