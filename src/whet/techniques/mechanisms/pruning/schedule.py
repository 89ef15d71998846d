"""Decide how much of a model is zero after each step: the cubic schedule of Zhu and Gupta.

Source: Zhu and Gupta, 2017, "To prune, or not to prune" (arXiv:1710.01878), equation 1.
"""

from dataclasses import dataclass

from whet.errors import OptionError


@dataclass(frozen=True)
class CubicSchedule:
    """Raise the sparsity fast at first and ever more slowly, so that the training can repair what is cut.

    Attributes:
        amount: The sparsity at the end, the share of the weights that are zero.
        begin_step: The step after which the first weights become zero.
        end_step: The step after which the sparsity has reached its end.
        interval: The steps between two cuts.
        initial: The sparsity that the first cut begins from.

    Raises:
        OptionError: A value is out of its range.
    """

    amount: float
    begin_step: int
    end_step: int
    interval: int = 1
    initial: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.amount < 1 or not 0 <= self.initial <= self.amount:
            raise OptionError(
                "amount must be above 0 and below 1, and initial from 0 to amount; got "
                f"{self.amount} and {self.initial}"
            )
        if self.begin_step < 0 or self.end_step < self.begin_step:
            raise OptionError(
                f"begin_step must be 0 or more, and end_step no less; got {self.begin_step} and {self.end_step}"
            )
        if self.interval < 1:
            raise OptionError(f"interval must be 1 or more; got {self.interval}")

    def sparsity(self, step: int) -> float:
        """Return the sparsity: amount + (initial - amount) (1 - (t - begin_step) / (end_step - begin_step))^3.

        Args:
            step: The number of steps that have been made, t.
        """
        if step < self.begin_step:
            return self.initial
        if step >= self.end_step:
            return self.amount
        left = 1 - (step - self.begin_step) / (self.end_step - self.begin_step)
        return self.amount + (self.initial - self.amount) * left**3

    def cuts_after(self, step: int) -> bool:
        """Return whether weights are cut after a step, as every `interval` steps from the begin and at the end."""
        if not self.begin_step <= step <= self.end_step:
            return False
        return step == self.end_step or (step - self.begin_step) % self.interval == 0
