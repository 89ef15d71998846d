"""Order items at random, anew for each epoch, as a function of the position alone.

A training that resumes needs a number and nothing else. The order comes from a counter-based generator (Philox) whose
key is the seed and the epoch: no state is carried from one position to the next. Its bits are the same in every version
of NumPy, and sorting them gives the permutation.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import OptionError

_KEPT = 2  # permutations: that of an epoch, and of the next one where a batch lies in both


class Order:
    """Give each of a number of items once an epoch."""

    def __init__(self, num_items: int, seed: int, *, shuffle: bool = True) -> None:
        """Make an order.

        Args:
            num_items: The items, 1 or more.
            seed: What the order depends on, from 0 to 2^64 - 1.
            shuffle: Whether each epoch has an order of its own. Otherwise items come in order.

        Raises:
            OptionError: A number is out of its range.
        """
        if num_items < 1:
            raise OptionError(f"there must be 1 item or more to put in order; got {num_items}")
        if not 0 <= seed < 2**64:
            raise OptionError(f"seed must be from 0 to 2^64 - 1; got {seed}")
        self.num_items, self.seed, self.shuffle = num_items, seed, shuffle
        self._permutations: OrderedDict[int, NDArray[np.integer[Any]]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the permutations to be made again in another process."""
        return {**self.__dict__, "_permutations": OrderedDict()}

    def item(self, position: int) -> int:
        """Return the item at a position, which counts the items of all epochs from 0.

        Raises:
            OptionError: The position is negative.
        """
        return int(self.items(position, 1)[0])

    def items(self, position: int, count: int) -> NDArray[np.int64]:
        """Return the items from a position on, int64 [count]. They may lie in several epochs.

        Args:
            position: Which item of all epochs is the first, from 0.

        Raises:
            OptionError: The position is negative.
        """
        if position < 0:
            raise OptionError(f"a position is 0 or more; got {position}")
        epoch, place = divmod(position, self.num_items)
        parts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        while count > 0:
            taken = min(count, self.num_items - place)
            parts.append(self._from_epoch(epoch, place, taken))
            count, epoch, place = count - taken, epoch + 1, 0
        return np.concatenate(parts)

    def _from_epoch(self, epoch: int, place: int, count: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(place, place + count)
        if epoch not in self._permutations:
            self._permutations[epoch] = self._permutation(epoch)
            while len(self._permutations) > _KEPT:
                self._permutations.popitem(last=False)
        return self._permutations[epoch][place : place + count].astype(np.int64)

    def _permutation(self, epoch: int) -> NDArray[np.integer[Any]]:
        bits = np.random.Philox(key=self.seed | epoch << 64).random_raw(self.num_items)
        found = np.argsort(bits, kind="stable")
        return found.astype(np.uint32) if self.num_items < 2**32 else found
