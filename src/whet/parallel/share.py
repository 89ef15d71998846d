"""Divide the rows of a batch among the processes that train together."""

from dataclasses import dataclass

from whet.errors import OptionError


@dataclass(frozen=True)
class Share:
    """Name one of so many shares of a batch: rows that lie side by side, nearly equally many in each share."""

    index: int = 0
    number: int = 1

    def of(self, size: int) -> slice:
        """Return the places of this share among so many."""
        return slice(self.index * size // self.number, (self.index + 1) * size // self.number)

    def most(self, size: int) -> int:
        """Return how many the largest share of so many has."""
        return -(-size // self.number)

    def check(self, size: int) -> None:
        """Raise OptionError where a batch of so many rows leaves a process without any."""
        if size < self.number:
            raise OptionError(
                f"batch.global_batch_size {size} gives no row to some of the {self.number} processes that share it; "
                f"set it to {self.number} or more"
            )


WHOLE = Share()
