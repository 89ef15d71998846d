"""Estimate from what was measured how long a verdict takes, so that a search leaves it time and names the budget."""

from dataclasses import dataclass

from whet.training.loss_proof import LEAST as LEAST_LOSS_PAIRS
from whet.tuner.budget import Budget, needed_for
from whet.tuner.outlook import MIN_ROUNDS

_NO_TIME = -1.0
_NOW = 0.5  # seconds in which a trial that fits may begin


@dataclass(frozen=True)
class VerdictCosts:
    """Hold how long each part of a search for a training takes.

    Attributes:
        trial_s: Seconds of a trial.
        pair_s: Seconds of a pair of processes of the finals.
        loss_pair_s: Seconds of a pair of training runs for the loss; 0 where no recipe needs them.
    """

    trial_s: float
    pair_s: float
    loss_pair_s: float = 0.0

    @property
    def proof_s(self) -> float:
        """Return the seconds of the shortest proof: of the fewest pairs of the finals, and of the loss."""
        return self._proof_s(LEAST_LOSS_PAIRS)

    def _proof_s(self, num_loss_pairs: int) -> float:
        return MIN_ROUNDS * self.pair_s + num_loss_pairs * self.loss_pair_s

    def search_s(self, budget: Budget) -> float:
        """Return for how many seconds from now trials may begin; negative where none fits.

        The proof's time is left to it. Where it does not fit after a single trial, nothing can be proved, and the whole
        budget is for trials: what they show is known then, and what a proof would take.
        """
        if budget.left_at_most_s < self.trial_s:
            return _NO_TIME
        if budget.left_at_most_s < self.trial_s + self.proof_s:
            return max(_NOW, budget.left_s - self.trial_s)
        return max(_NOW, budget.left_s - self.proof_s - self.trial_s)

    def fits_finals(self, budget: Budget) -> bool:
        """Return whether the fewest pairs of the finals fit into what is left."""
        return MIN_ROUNDS * self.pair_s <= budget.left_at_most_s

    def needed_s(self, spent_s: float, num_trials: int = 0, num_loss_pairs: int = LEAST_LOSS_PAIRS) -> float:
        """Return a budget in seconds for what was done, some more trials and a proof.

        Args:
            spent_s: The seconds of what was done, and will be done again.
            num_trials: The trials that are still to be made.
            num_loss_pairs: The pairs of runs for the loss.
        """
        return needed_for(spent_s + num_trials * self.trial_s + self._proof_s(num_loss_pairs))


def budget_words(seconds: float) -> str:
    """Return a budget as --budget takes it: "90s" or "4m"."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"


def enough(seconds: float) -> str:
    """Return which budget would do, for the end of a sentence."""
    return f"--budget {budget_words(seconds)} would be enough"
