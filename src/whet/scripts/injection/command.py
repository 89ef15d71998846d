"""Check a command that starts a training script, and run it: for some steps in a copy, or to its end with a recipe."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.core.recipe import Recipe, Step
from whet.errors import RecipeError, TargetError
from whet.measure import load
from whet.measure.isolate import LOG, QUIET, Child, end_tree, last_line, signal_name, started
from whet.measure.machine.cache import compiler_directory
from whet.scripts.injection.launched_child import end_processes_of, told_before_report, wait_for_launcher
from whet.scripts.injection.launching import SignalsToChild, environment
from whet.scripts.injection.messages import (
    SEED_VARIABLE,
    STARTER_VARIABLE,
    VARIABLE,
    ScriptRecord,
    ScriptRequest,
)
from whet.scripts.injection.needed_environment import needed_environment
from whet.scripts.injection.overlay import make_overlay
from whet.scripts.injection.rank_place import REFUSED, has_trained, problem_of
from whet.scripts.injection.rank_records import are_recorded, joined_record
from whet.scripts.injection.script_command import ScriptCommand
from whet.techniques.technique import named
from whet.techniques.training import TRAINING_TABLE
from whet.ui.figures import num_bytes

MOST_WRITTEN = 2**30  # bytes that a run may add to its copy
_POLL_S, _SIZE_S, _GRACE_S = 0.05, 0.5, 20.0
_MOST_NEIGHBOURS = 1000


@dataclass(frozen=True)
class ScriptOutcome:
    """Hold a bounded run's directory of messages, and its record or, where it is None, why it failed, in words."""

    directory: Path
    record: ScriptRecord | None
    failure: str = ""


def run_bounded(
    command: ScriptCommand, request: ScriptRequest, scratch: Path, *, limit_s: float, most_written: int = MOST_WRITTEN
) -> ScriptOutcome:
    """Run a script for some steps, in a copy of its working directory.

    Args:
        request: What is asked for; where it may write is added here.
        scratch: The directory for copies, messages and logs of all runs.
        limit_s: Seconds after which the run is ended.
        most_written: Bytes that the run may add to its copy.
    """
    directory = next(path for i in itertools.count() if not (path := scratch / f"run-{i}").exists())
    directory.mkdir(parents=True)
    try:
        needed = needed_environment(request.steps)
    except RecipeError as error:
        return ScriptOutcome(directory, None, str(error))
    copy = _copied(command.directory, directory / "tree")
    messages = directory / "messages"
    messages.mkdir()
    _made_temporary(directory / "tmp", scratch)
    own = {"writable": (str(scratch),), "protected": str(command.directory.parent)}
    request.model_copy(update={**own, "is_launched": command.is_launched}).write(messages)
    added = {
        **load.environment(),
        **QUIET,
        **needed,
        VARIABLE: str(messages),
        SEED_VARIABLE: str(request.seed),
        "PYTHONHASHSEED": "0",
        "TMPDIR": str(directory / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "compiled"),  # all runs share it
    }
    if command.is_launched:
        added[STARTER_VARIABLE] = str(os.getpid())
    before = _written(copy)
    try:
        child = started(command.in_copy(copy), directory, environment(added), copy)
    except OSError as error:
        raise TargetError(f"cannot run {command.words[0]}: {error.strerror or error}") from error
    try:
        ended_by = _watched(child, messages, copy, before + most_written, limit_s)
    finally:
        end_tree(child)
    record = joined_record(messages) if command.is_launched else ScriptRecord.read(messages)
    failure = ended_by or _failure(command, child.wait(), directory, record)
    shutil.rmtree(copy.parent, ignore_errors=True)
    return ScriptOutcome(messages, None if failure else record, failure)


def _made_temporary(directory: Path, scratch: Path) -> None:
    """Make a run's directory for temporary files, in which all runs share the headers that the compiler has compiled.

    PyTorch keeps them below the temporary directory, whatever TORCHINDUCTOR_CACHE_DIR says. Compiling takes seconds.
    """
    shared = scratch / "compiled_headers"
    shared.mkdir(exist_ok=True)
    directory.mkdir()
    compiler_directory(directory).symlink_to(shared)


def _copied(source: Path, tree: Path) -> Path:
    """Return a copy of a directory, with links to its neighbours beside it, for scripts that read ../data."""
    tree.mkdir()
    copy = make_overlay(source, tree / (source.name or "copy"), {})
    for neighbour in itertools.islice(source.parent.iterdir(), _MOST_NEIGHBOURS):
        if neighbour != source and neighbour.name != copy.name:
            (tree / neighbour.name).symlink_to(neighbour)
    return copy


def _watched(child: Child, messages: Path, copy: Path, most_bytes: int, limit_s: float) -> str:
    """Wait for a run, and return why it has to be ended; "" where it ended by itself."""
    began, looked, recorded = time.monotonic(), time.monotonic(), 0.0
    while True:
        try:
            child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return ""
        now = time.monotonic()
        if not recorded and (ScriptRecord.is_in(messages) or are_recorded(messages)):
            recorded = now
        if recorded and now > recorded + _GRACE_S:
            return ""  # it has trained enough, and hangs as it ends
        if now > began + limit_s:
            return f"it took longer than {limit_s:.0f} s for its steps; give it a smaller model or fewer --steps"
        if now > looked + _SIZE_S:
            looked = now
            if _written(copy) > most_bytes:
                return _too_large(copy)


def _too_large(copy: Path) -> str:
    largest = max((path for path in copy.rglob("*") if not path.is_symlink() and path.is_file()), key=_size)
    return (
        f"it writes large files (the largest is {largest.relative_to(copy)}, {num_bytes(_size(largest))}); "
        "let it save less often, or write less"
    )


def _written(copy: Path) -> int:
    """Return the bytes of the files in a copy, without those that are links."""
    total = 0
    for folder, _, names in os.walk(copy):  # follows no links
        total += sum(_size(Path(folder) / name) for name in names)
    return total


def _size(path: Path) -> int:
    try:
        return 0 if path.is_symlink() else path.stat().st_size
    except OSError:  # it has been removed meanwhile
        return 0


def _failure(command: ScriptCommand, code: int, directory: Path, record: ScriptRecord | None) -> str:
    """Return why a run that ended by itself is of no use; "" where it is."""
    if problem := problem_of(directory / "messages"):
        return problem
    last = told_before_report(directory / LOG) if command.is_launched and code else last_line(directory / LOG)
    if code < 0:
        return f"it was ended by {signal_name(-code)}{f': {last}' if last else ''}"
    if code and last.startswith("EOFError"):
        return f"{command.name} asks for input; give it all it needs as arguments"
    if code:
        return f"it ended with exit code {code}: {last}" if last else f"it ended with exit code {code}"
    if record is None:
        return (
            f"{command.name} made no optimiser step of PyTorch; give it arguments with which it trains for some steps"
        )
    return ""


def checked_steps(recipe: Recipe) -> tuple[Step, ...]:
    """Return the steps of a recipe for training whose techniques are known.

    Raises:
        RecipeError: The recipe is not for training, or names something that is not known.
    """
    steps = recipe.checked_for("training").steps
    if not steps:
        raise RecipeError("the recipe is empty: the original was the fastest, so start the script as it is")
    for step in steps:
        named(step, TRAINING_TABLE).options_of(step)
    return steps


def run_with_recipe(command: ScriptCommand, recipe: Recipe, scratch: Path) -> int:
    """Run a script to its own end with a recipe applied to its loop.

    The script keeps its standard input, output and error, and its working directory. Signals are
    forwarded to it. `scratch` is a directory for messages. Of the processes that a launcher starts, all get the recipe,
    and where one of them refuses it, all end.

    Returns:
        The exit code of the script, or of its launcher; 128 plus the signal's number if a signal ended it.

    Raises:
        RecipeError: The recipe cannot be used, or needs a library that is not installed.
        TargetError: The command cannot be started.
    """
    steps = checked_steps(recipe)
    variables = environment({VARIABLE: str(scratch), **needed_environment(steps)})
    if command.is_launched:
        variables[STARTER_VARIABLE] = str(os.getpid())
    request = ScriptRequest(steps=steps, fingerprint=recipe.fingerprint, is_bounded=False)
    request.model_copy(update={"is_launched": command.is_launched}).write(scratch)
    signals = SignalsToChild()
    try:
        child = subprocess.Popen(list(command.words), env=variables)
        signals.forward_to(child)
        code = wait_for_launcher(child, scratch) if command.is_launched else child.wait()
        if signals.were_received and command.is_launched:
            end_processes_of(scratch)
    except OSError as error:
        raise TargetError(f"cannot run {command.words[0]}: {error.strerror or error}") from error
    finally:
        signals.restore()
    problem = problem_of(scratch)
    if problem and command.is_launched:
        sys.stderr.write(f"error: {problem}\n")
        return REFUSED
    if not problem and not has_trained(scratch):
        sys.stderr.write("whet: the recipe was applied to nothing: no training loop of PyTorch was seen\n")
    return code if code >= 0 else 128 - code


def run_script(command: Sequence[str], recipe: Recipe | str | os.PathLike[str]) -> int:
    """Run a training script to its end with a recipe applied to its loop. No line of the script changes.

    Call this in the main thread, because signals are forwarded to the script.

    Args:
        command: The command, as ["python", "train.py", "--epochs", "3"], or ["torchrun", "train.py"].
        recipe: A recipe for training, the file that holds it, or the directory of a tuning run.

    Returns:
        The script's exit code; 2 where the recipe does not apply to its loop.

    Raises:
        TargetError: The command cannot be run.
        RecipeError: The recipe cannot be read, is not for training, or needs a library that is not installed.
    """
    found = ScriptCommand.checked(command)
    read = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    with tempfile.TemporaryDirectory(prefix="whet-run-") as scratch:
        return run_with_recipe(found, read, Path(scratch))
