"""Tell whoever watches a search how it goes."""

from whet.tuner.budget_plan import BudgetPlan
from whet.tuner.facts import Facts
from whet.tuner.records import TrialRecord


class Listener:
    """Watch the progress of tuning. Each method does nothing here; the command line overrides them to show progress."""

    def begins(self) -> None:
        """Note that the work begins. What a name and options show to be wrong has been refused by then."""

    def looked(self, facts: Facts) -> None:
        """Note that the target has been examined."""

    def planned(self, outlook: BudgetPlan) -> None:
        """Note how the rest of the budget was divided: what fits, and about how long it takes."""

    def tried(self, record: TrialRecord) -> None:
        """Note that a trial has ended or was stopped."""

    def waiting(self, text: str) -> None:
        """Note that the machine is busy and whet waits for quiet. The text is "" once it goes on."""

    def known(self, text: str) -> None:
        """Note what is known so far, in a sentence, before it is proved."""

    def tuning(self, name: str, budget_s: float) -> "Listener":
        """Note that a search within this one begins, for a model of a stream, and return who watches it."""
        return Listener()

    def measured(self, rounds_done: int, rounds: int) -> None:
        """Note that a round of the finals has ended."""

    def proved(self, num_pairs: int) -> None:
        """Note that so many pairs of training runs for the held-out loss have ended."""
