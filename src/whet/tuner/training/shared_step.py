"""Say where the time of a step goes that several processes make together, and what a plan could save of it."""

from pydantic import BaseModel

from whet.ui.figures import percent


class SharedStep(BaseModel, frozen=True):
    """Hold the seconds of a step of the original, DDP with its defaults.

    Attributes:
        total_s: All of it.
        alone_s: The shortest step in which no gradients are summed over processes.
        optimizer_s: The update, which each process makes of all parameters.
    """

    total_s: float
    alone_s: float
    optimizer_s: float

    @property
    def exchange_s(self) -> float:
        """Return how much longer a step takes since gradients are summed."""
        return max(0.0, self.total_s - self.alone_s)

    def bound(self, number: int, *, exchanges_less: bool, divides_update: bool) -> float:
        """Return the highest speedup of a plan for so many processes.

        Args:
            exchanges_less: Whether it may save the time of sums.
            divides_update: Whether each process updates its part of the parameters alone.
        """
        saved_s = self.exchange_s if exchanges_less else 0.0
        saved_s += self.optimizer_s * (1 - 1 / number) if divides_update else 0.0
        return self.total_s / max(self.total_s - saved_s, 1e-9) if self.total_s else 1.0

    def words(self, number: int) -> str:
        exchange, update = (percent(part / self.total_s, decimals=0) for part in (self.exchange_s, self.optimizer_s))
        return (
            f"On {number} processes it takes {self.total_s * 1e3:.0f} ms: {exchange} sums of gradients, {update} "
            "optimiser."
        )
