"""Prepare a search: check the directory for its results, and the memory that it may take."""

import os
import shutil
import tempfile
from pathlib import Path

from whet.core.recipe_file import FILE as RECIPE
from whet.errors import OptionError, OutputError, StudyError
from whet.files import names_in, writable_parent
from whet.measure.isolate import QUIET, run_isolated
from whet.measure.memory import bare_process
from whet.tuner.known_target import INPUTS, OUTPUTS
from whet.tuner.study import FILE as STUDY
from whet.ui.figures import num_bytes

WORK = "trials"
_ENOUGH_BYTES = 2**30  # torch alone surely fits into this much


def checked_directory(out: str | os.PathLike[str] | None, resume: bool, *, has_own_study: bool) -> Path | None:
    """Check the output directory and return it. None means that a temporary one is made later.

    Args:
        has_own_study: Whether the study lies in this directory, and not in a shared storage.

    Raises:
        StudyError: There is no search to resume.
        OutputError: The directory holds other things, or cannot be written.
    """
    if out is None:
        if resume and has_own_study:
            raise StudyError("resume goes on with the search that `out` or `storage` holds; give one of them")
        return None
    directory = Path(out).absolute()
    if resume and has_own_study and STUDY not in names_in(directory):
        raise StudyError(f"{directory} holds no search to go on with; leave out --resume")
    if names_in(directory):
        if not resume:
            raise OutputError(f"{directory} exists already; choose another --out, or go on with it by --resume")
        if not any((directory / sign).is_file() for sign in (STUDY, f"{WORK}/{INPUTS}", RECIPE)):
            raise OutputError(f"{directory} holds other things than a search; choose another --out")
    writable_parent(directory)
    return directory


def check_memory(max_memory_bytes: int | None) -> None:
    """Check that a process that has only imported torch fits into the allowed memory.

    Raises:
        OptionError: It does not fit.
    """
    if max_memory_bytes is None or max_memory_bytes >= _ENOUGH_BYTES:
        return
    with tempfile.TemporaryDirectory(prefix="whet-memory-") as scratch:
        outcome = run_isolated(bare_process, {}, Path(scratch), time_limit_s=60, environment=QUIET)
    least = (outcome.value or {}).get("peak_bytes", 0)
    if max_memory_bytes < least:
        raise OptionError(
            f"nothing fits into {num_bytes(max_memory_bytes)}: a process that has only imported torch holds "
            f"{num_bytes(least)}; give more --max-memory"
        )


def prepare_work_directory(scratch: Path, directory: Path) -> Path:
    """Create the work directory in the output directory, move the examination's files there, and return it.

    Raises:
        OutputError: The directory cannot be written.
    """
    work = directory / WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        for name in (INPUTS, OUTPUTS):
            if (scratch / name).is_file():
                shutil.move(scratch / name, work / name)
    except OSError as error:
        raise OutputError(f"{directory} cannot be written: {error.strerror}") from error
    return work
