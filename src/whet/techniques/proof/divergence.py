"""Say at which step a training's loss diverges. Nothing heavy is imported: a configuration takes its defaults here."""

import math
from collections.abc import Sequence

FAR = 10.0  # times a sound run's largest loss: a run that stays there diverges
FIRST = 20  # steps whose largest loss tells what a sound one is
PATIENCE = 20  # steps in a row with far losses: one odd batch is no divergence


class LossWatch:
    """Follow the losses of a run, and tell where it diverges: at NaN or infinity, or where losses stay far too large.

    A loss is far if it is larger than `factor` times the largest of the first `FIRST` steps, and larger than `floor`.
    One far loss is an odd batch. A run diverges with `patience` of them in a row.

    Args:
        factor: How many times as large a far loss is; 0 to look for NaN and infinity alone.
        patience: How many far losses in a row end a run.
        floor: A loss that is not far, however small the first ones were: the loss of a guess.
        largest: The largest size of the first losses, where a run goes on.
    """

    def __init__(
        self, *, factor: float = FAR, patience: int = PATIENCE, floor: float = 0.0, largest: float = 0.0
    ) -> None:
        self.largest = largest
        self._factor, self._patience, self._floor = factor, patience, floor
        self._num_far = 0

    @property
    def is_far(self) -> bool:
        """Return whether the latest loss was far."""
        return self._num_far > 0

    def fault(self, step: int, loss: float) -> str:
        """Return how the run diverges with this step's loss, in words; "" where it does not."""
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
        if step <= FIRST:
            self.largest = max(self.largest, abs(loss))
            return ""
        limit = max(self._factor * self.largest, self._floor)
        self._num_far = self._num_far + 1 if self._factor and abs(loss) > limit else 0
        if self._num_far < self._patience:
            return ""
        known = f"{self._factor:g} times the first ones" if limit > self._floor else "the loss of a guess"
        last = f"{loss:.4g} in step {step}"
        return f"the losses of the last {self._num_far} steps are more than {limit:.4g} ({known}): {last}"


def divergence(losses: Sequence[float], most: float = math.inf, *, num_known: float = math.inf) -> str:
    """Return at which step a training diverges, in words; "" where it does not.

    Args:
        losses: The loss of each step, from the first one on.
        most: The size of a loss that no sound run reaches: `FAR` times the original's largest.
        num_known: The steps that the original made too, on the same batches. After them, a batch may be odd, so that
            `PATIENCE` losses in a row have to be larger than `most`.
    """
    num_far = 0
    for number, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            return f"the loss of step {number} is {loss}"
        num_far = num_far + 1 if abs(loss) > most else 0
        if num_far and (number <= num_known or num_far >= PATIENCE):
            return f"the loss of step {number} is {loss:.4g}, more than {FAR:g} times the original's largest"
    return ""
