"""What `whet tune` saves: the winner or the original, once a fresh process has loaded and run it; else why not."""

import shutil
from pathlib import Path

from pydantic import BaseModel

from whet.files import replace_directory
from whet.tuner.build import is_in_process
from whet.tuner.in_process import ADVICE
from whet.tuner.reloading import reload_refusal
from whet.tuner.result import MODEL, Result
from whet.tuner.search import Workbench
from whet.tuner.trial import save_original

_RECORD = "saved.json"


class Saved(BaseModel):
    """An artefact that a fresh process has loaded and run.

    Attributes:
        directory: The artefact; None where there is none.
        libraries: What whet.load has to be given with it.
        reason: Why there is none.
    """

    directory: Path | None = None
    libraries: list[str] = []
    reason: str = ""


def save_model(bench: Workbench, result: Result, directory: Path) -> None:
    """Put the model into the output directory and its libraries into the result, or the reason why there is none."""
    saved = saved_winner(bench, result) if result.verdict == "gain" else saved_original(bench)
    result.libraries, result.unsaved = saved.libraries, saved.reason
    if saved.directory is not None:
        replace_directory(saved.directory, directory / MODEL)
    else:
        shutil.rmtree(directory / MODEL, ignore_errors=True)  # of an earlier search


def saved_winner(bench: Workbench, result: Result) -> Saved:
    """The artefact of the best trial, which a fresh process loaded and ran before the finals did so again."""
    record = next(r for r in result.trials if r.number == result.best.number)
    if is_in_process(record.steps):
        return Saved(reason=f"{record.label} cannot be saved: {ADVICE}.")
    return Saved(directory=bench.artefact(record.number), libraries=record.libraries)


def saved_original(bench: Workbench) -> Saved:
    """Save the original as an artefact, so that what was tuned can be loaded whatever the verdict.

    It is tried once; a second call returns what came of it.
    """
    folder = bench.directory / "original"
    if (folder / _RECORD).is_file():
        return Saved.model_validate_json((folder / _RECORD).read_text(encoding="utf-8"))
    found = _try_original(bench, folder / "artefact")
    if found.directory is None:
        found.reason = f"The original could not be saved, so there is no {MODEL}/ to load: {found.reason}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RECORD).write_text(found.model_dump_json(), encoding="utf-8")
    return found


def _try_original(bench: Workbench, artefact: Path) -> Saved:
    shutil.rmtree(artefact, ignore_errors=True)
    arguments = {
        "target": bench.target,
        "signature": bench.facts.signature_json,
        "directory": str(artefact),
        "batch": bench.facts.batch.model_dump(),
    }
    outcome = bench.run(save_original, arguments, artefact.parent, bench.trial_limit_s)
    if outcome.value is None:
        return Saved(reason=outcome.failure.message if outcome.failure else "its process gave no result")
    libraries = outcome.value["libraries"]
    why = reload_refusal(
        bench.run,
        artefact,
        inputs=bench.inputs,
        libraries=libraries,
        places=bench.facts.sys_path,
        num_threads=bench.facts.num_threads,
    )
    return Saved(reason=why) if why else Saved(directory=artefact, libraries=libraries)
