"""Save the winner or the original, once a fresh process has loaded and run it, or say why that failed."""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from whet.files import replace_directory
from whet.tuner.build import is_in_process
from whet.tuner.in_process import ADVICE
from whet.tuner.records import Built
from whet.tuner.result import MODEL, Result
from whet.tuner.trial import TrialRequest, save_original
from whet.tuner.trial_context import TrialContext
from whet.workloads.text_encoder import save_text_use

_RECORD = "saved.json"


class Saved(BaseModel):
    """Describe an artefact that a fresh process has loaded and run.

    Attributes:
        directory: The artefact; None where there is none.
        libraries: The libraries that whet.load needs with it.
        reason: Why there is none.
    """

    model_config = ConfigDict(frozen=True)

    directory: Path | None = None
    libraries: tuple[str, ...] = ()
    reason: str = ""


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
    """Return the artefact of the best trial.

    A fresh process has loaded and run it before the finals, and again in them.
    """
    record = next(r for r in result.trials if r.number == result.best.number)
    if is_in_process(record.steps):
        return Saved(reason=f"{record.label} cannot be saved: {ADVICE}.")
    return Saved(directory=context.artefact(record.number), libraries=record.libraries)


def saved_original(context: TrialContext) -> Saved:
    """Save the original as an artefact, so that there is a model to load whatever the verdict is.

    It is tried once; a second call returns the outcome of the first.
    """
    folder = context.directory / "original"
    if (folder / _RECORD).is_file():
        return Saved.model_validate_json((folder / _RECORD).read_text(encoding="utf-8"))
    found = _try_original(context, folder / "artefact")
    if found.directory is None:
        reason = f"there is no {MODEL}/ to load, since the original could not be saved: {found.reason}"
        found = Saved(reason=reason)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RECORD).write_text(found.model_dump_json(), encoding="utf-8")
    return found


def _try_original(context: TrialContext, artefact: Path) -> Saved:
    """Save the original in one child process, and load it in another."""
    shutil.rmtree(artefact, ignore_errors=True)
    request = TrialRequest(known=context.known, directory=artefact)
    outcome = context.run(save_original, request, artefact.parent, context.trial_limit_s)
    built = outcome.answer(Built)
    if built is None:
        return Saved(reason=outcome.failure.message if outcome.failure else "its process gave no result")
    why = context.reload_refusal(artefact, built.libraries)
    return Saved(reason=why) if why else Saved(directory=artefact, libraries=built.libraries)
