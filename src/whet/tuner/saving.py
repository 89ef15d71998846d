"""Save the winner or the original, once a fresh process has loaded and run it, or say why that failed."""

import shutil
from pathlib import Path

from pydantic import BaseModel

from whet.core.artefact.runtime import MODEL
from whet.files import replace_directory
from whet.tuner.budget import BudgetEnded
from whet.tuner.build import is_in_process
from whet.tuner.in_process import ADVICE
from whet.tuner.records import Built
from whet.tuner.reloading import refusal
from whet.tuner.result import Result
from whet.tuner.trial import TrialRequest, save_original
from whet.tuner.trial_context import TrialContext
from whet.workloads.text_encoder import save_text_use

_RECORD = "saved.json"


class Saved(BaseModel, frozen=True):
    """Describe an artefact that a fresh process has loaded and run.

    Attributes:
        directory: The artefact; None where there is none.
        libraries: The libraries that whet.load needs with it.
        reason: Why there is none, in sentences.
        is_out_of_time: Whether there is none because the budget ended.
    """

    directory: Path | None = None
    libraries: tuple[str, ...] = ()
    reason: str = ""
    is_out_of_time: bool = False


def save_model(context: TrialContext, result: Result, directory: Path) -> None:
    """Put the model into the output directory and its libraries into the result, or the reason why there is none."""
    saved = saved_winner(context, result) if result.verdict == "gain" else saved_original(context)
    result.libraries, result.unsaved = list(saved.libraries), saved.reason
    if saved.directory is not None:
        save_text_use(result.target, saved.directory)
        replace_directory(saved.directory, directory / MODEL)
    else:
        shutil.rmtree(directory / MODEL, ignore_errors=True)  # an earlier search may have left one


def saved_winner(context: TrialContext, result: Result) -> Saved:
    """Return the artefact of the best trial, which a fresh process has loaded and run before the finals and in them."""
    record = next(r for r in result.trials if r.number == result.best.number)
    if is_in_process(record.steps):
        return Saved(reason=f"{record.label} cannot be saved: {ADVICE}.")
    return Saved(directory=context.artefact(record.number), libraries=record.libraries)


def saved_original(context: TrialContext) -> Saved:
    """Save the original as an artefact, so that there is a model to load whatever the verdict is.

    It is tried once; a second call returns the outcome of the first, unless the budget ended that.
    """
    folder = context.directory / "original"
    if (folder / _RECORD).is_file():
        return Saved.model_validate_json((folder / _RECORD).read_text(encoding="utf-8"))
    found = _try_original(context, folder / "artefact")
    if found.is_out_of_time:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RECORD).write_text(found.model_dump_json(), encoding="utf-8")
    return found


def _try_original(context: TrialContext, artefact: Path) -> Saved:
    shutil.rmtree(artefact, ignore_errors=True)
    request = TrialRequest(known=context.known, directory=artefact)
    outcome = context.run(save_original, request, artefact.parent, context.trial_limit_s)
    built = outcome.answer(Built)
    if isinstance(outcome.failure, BudgetEnded):
        return _out_of_time(outcome.failure)
    if built is None:
        return _unsaved(outcome.failure.message if outcome.failure else "its process gave no result")
    failure = context.reload_failure(artefact, built.libraries)
    if isinstance(failure, BudgetEnded):
        return _out_of_time(failure)
    if failure is not None:
        return _unsaved(refusal(failure))
    return Saved(directory=artefact, libraries=built.libraries)


def _unsaved(why: str) -> Saved:
    return Saved(reason=f"No {MODEL}/ was written, since the original could not be saved: {why}")


def _out_of_time(failure: BudgetEnded) -> Saved:
    took = f"saving the original took longer than the {failure.left_s:.0f} s that were left"
    if failure.left_s <= 0:
        took = "no time was left to save the original"
    reason = f"No {MODEL}/ was written: {took}. Run the command below again with --resume, or give a larger --budget."
    return Saved(reason=reason, is_out_of_time=True)
