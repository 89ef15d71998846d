"""Place keys on a ring of replicas, so that each key keeps its replica while others come and go.

Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018 (arXiv:1608.01350).
"""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Collection, Iterator

_NUM_POINTS = 128  # of each replica on the ring: shares then differ by about a tenth
_SLACK = 1.25  # the most load of one replica, as a multiple of the mean


class Ring:
    """Order replicas, numbered from 0, by how near they are to a key."""

    def __init__(self, num_replicas: int) -> None:
        points = [
            (digest(f"{number}/{i}".encode()), number) for number in range(num_replicas) for i in range(_NUM_POINTS)
        ]
        self._points = sorted(points)
        self._places = [place for place, _ in self._points]
        self._num_replicas = num_replicas

    def order(self, key: int) -> Iterator[int]:
        """Yield all replicas, the key's own first. Without one of them, the order of the others is the same.

        `key` has 64 bits, as `digest` returns them.
        """
        seen = set[int]()
        first = bisect_left(self._places, key)
        for step in range(len(self._points)):
            number = self._points[(first + step) % len(self._points)][1]
            if number not in seen:
                seen.add(number)
                yield number
                if len(seen) == self._num_replicas:
                    return


def most_load(loads: Collection[int]) -> int:
    """Return how many requests a replica may have, the next one included, given how many each has.

    It is 1.25 times the mean, rounded up, so at least one replica has room for one more.
    """
    return math.ceil(_SLACK * (sum(loads) + 1) / len(loads))


def digest(content: bytes, before: int = 0) -> int:
    """Return a hash of 64 bits of some bytes, and of the hash of what comes before them."""
    salt = before.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, salt=salt).digest(), "big")
