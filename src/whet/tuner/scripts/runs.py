"""Run variants of a script for tuning: to prove them, to time them, and to train pairs for their loss."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.scripts.audit_measure.version import run_of_steps
from whet.scripts.injection.command import ScriptOutcome, run_bounded
from whet.scripts.injection.messages import ScriptRequest
from whet.scripts.injection.script_command import ScriptCommand
from whet.tuner.verdict_costs import VerdictCosts

PROOF_STEPS = 12
_MOVED_STEPS = 2  # of a run whose first gradients alone are looked at
LEAST_STEPS = 8
RUN_S = 2.0  # seconds of steps that are enough to time a process
_NEVER = 1e9


@dataclass
class ScriptRuns:
    """Start runs of one script.

    Attributes:
        scratch: The directory for copies and messages.
        num_steps: The most steps of a run.
        limit_s: Seconds after which a run is ended.
        longest_s: Seconds that the longest run took so far.
        starting_s: Seconds of the latest timed run without its steps.
        proof_s: Seconds of the latest run for a proof.
        timed_s: Seconds of the latest timed run.
    """

    command: ScriptCommand
    scratch: Path
    num_steps: int
    limit_s: float
    longest_s: float = field(default=0.0)
    starting_s: float = field(default=0.0)
    proof_s: float = field(default=0.0)
    timed_s: float = field(default=0.0)
    _num_timed: int = field(default=1, repr=False)

    def proof(self, steps: Sequence[Step] = (), *, num_threads: int = 0, left_s: float = math.inf) -> ScriptOutcome:
        """Run the first steps with dropout off, and record gradients and updates, for `left_s` seconds at most."""
        number = min(self.num_steps, PROOF_STEPS)
        return self._run(
            ScriptRequest(steps=tuple(steps), num_steps=number, enough_s=RUN_S, is_proof=True, num_threads=num_threads),
            left_s,
        )

    def moved(self, size: float, number: int) -> ScriptOutcome:
        """Run the script's first steps with a rounding error of at most `size` of each parameter, in move `number`."""
        return self._run(ScriptRequest(num_steps=_MOVED_STEPS, enough_s=0.0, is_proof=True, moved=size, move=number))

    def timed(self, steps: Sequence[Step] = (), *, is_watched: bool = False, left_s: float = math.inf) -> ScriptOutcome:
        """Run as many steps as a timing needs, for `left_s` seconds at most."""
        request = ScriptRequest(steps=tuple(steps), num_steps=self.num_steps, enough_s=RUN_S, is_watched=is_watched)
        return self._run(request, left_s)

    def for_loss(self, steps: Sequence[Step], seed: int) -> ScriptOutcome:
        """Train all steps of a run with other seeds."""
        return self._run(
            ScriptRequest(steps=tuple(steps), num_steps=self.num_steps, enough_s=_NEVER, seed=seed, shift=1009 * seed)
        )

    def _run(self, request: ScriptRequest, left_s: float = math.inf) -> ScriptOutcome:
        began, limit_s = time.monotonic(), min(self.limit_s, left_s)
        request = request.model_copy(update={"limit_s": 0.9 * limit_s})
        outcome = run_bounded(self.command, request, self.scratch, limit_s=limit_s)
        seconds = time.monotonic() - began
        self.longest_s = max(self.longest_s, seconds)
        if request.is_proof:
            self.proof_s = seconds if request.num_steps > _MOVED_STEPS else self.proof_s
        elif outcome.record is not None and request.enough_s < _NEVER:
            self._num_timed = len(outcome.record.seconds)
            self.timed_s, self.starting_s = seconds, max(0.0, seconds - sum(outcome.record.seconds))
        return outcome

    def costs(self, num_finalists: int = 1) -> VerdictCosts:
        step_s = (self.timed_s - self.starting_s) / max(1, self._num_timed)
        loss_s = self.starting_s + self.num_steps * step_s
        return VerdictCosts(self.proof_s, 2 * max(1, num_finalists) * self.timed_s, 2 * loss_s)


def timed_run(outcome: ScriptOutcome) -> Run:
    record = outcome.record
    if record is None:
        return Run(failure=outcome.failure)
    return run_of_steps(
        record.seconds,
        record.blocks,
        peak_bytes=record.memory.peak_bytes if record.memory is not None else record.peak_bytes,
        cuda_peak_bytes=record.cuda_peak_bytes,
    )
