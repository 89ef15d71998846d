"""Estimate from what was measured how long the proof of a training's recipe takes, so that a search leaves it time."""

from dataclasses import dataclass

from whet.techniques.proof.loss_proof import LEAST as LEAST_LOSS_PAIRS
from whet.tuner.budget import needed_for
from whet.tuner.budget_plan import MIN_ROUNDS


@dataclass(frozen=True)
class VerdictCosts:
    """Hold how long each part of a search for a training takes.

    Attributes:
        round_s: Seconds of a round of the finals: a pair of processes for each finalist.
        loss_pair_s: Seconds of a pair of training runs for the loss; 0 where no finalist needs them.
    """

    trial_s: float
    round_s: float
    loss_pair_s: float = 0.0

    @property
    def finals_s(self) -> float:
        """Return the seconds of the shortest finals."""
        return MIN_ROUNDS * self.round_s

    @property
    def losses_s(self) -> float:
        """Return the seconds of the shortest proof of a loss."""
        return LEAST_LOSS_PAIRS * self.loss_pair_s

    @property
    def proof_s(self) -> float:
        return self.finals_s + self.losses_s

    def needed_s(self, spent_s: float, num_trials: int = 0, num_loss_pairs: int = LEAST_LOSS_PAIRS) -> float:
        """Return a budget in seconds for what took `spent_s` and will be done again, some more trials and a proof."""
        proof_s = self.finals_s + num_loss_pairs * self.loss_pair_s
        return needed_for(spent_s + num_trials * self.trial_s + proof_s)
