"""Hold what came of a run of `whet train`."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class TrainResult:
    """Hold what came of a run.

    Attributes:
        directory: The directory of the run.
        model: The Hugging Face directory of what was trained; None where the run was stopped before its end.
        step: The optimiser steps that were made, over all starts.
        steps: The steps of the whole run.
        tokens: The tokens that were learnt from.
        seconds: The seconds of training, over all starts.
        loss: The mean loss of the latest steps.
        held_out_loss: The latest held-out loss; None where nothing is held out.
        tokens_per_s: Tokens a second in the steps of this start, without scores and checkpoints.
        scores: The latest held-out scores by name; of a classification, accuracy and macro_f1 too.
        task: What was trained: "language" or "classification".
        stopped_by: The signal that stopped it, or "max_minutes"; "" where it came to its end.
        exit_code: 0, or 128 plus the signal's number.
        notes: What should be known.
    """

    directory: Path
    model: Path | None
    step: int
    steps: int
    tokens: int
    seconds: float
    loss: float | None
    held_out_loss: float | None
    tokens_per_s: float | None
    stopped_by: str = ""
    exit_code: int = 0
    notes: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    task: str = "language"
