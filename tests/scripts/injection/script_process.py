"""Run a script as its own process would, in a fork that has torch already: only how it starts differs."""

import atexit
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import forked_children
from whet.measure.isolate import ARGUMENTS, Child, Job
from whet.scripts.injection.attach import begin
from whet.scripts.injection.messages import VARIABLE


def use(patch: pytest.MonkeyPatch) -> None:
    """Start scripts as forks of the server of the fixture `children_server`."""
    patch.setattr("whet.scripts.injection.command.started", _started)


def _started(words: Sequence[str], directory: Path, variables: Mapping[str, str], working_directory: Path) -> Child:
    (directory / "log.txt").touch()
    (directory / ARGUMENTS).write_text(json.dumps({"words": list(words)}))
    places = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    given = {**variables, "PYTHONPATH": places}
    job = Job(run, {}, directory, given, working_directory)
    return forked_children._start("script_process:run", directory, job, timed_s=1.0)


def run(words: list[str]) -> None:
    """Be `python SCRIPT ARGUMENTS...`. Never return."""
    code = 1
    try:
        sys.argv = words[1:]
        sys.path.insert(0, str(Path(words[1]).parent.resolve()))
        begin(os.environ[VARIABLE])
        runpy.run_path(words[1], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter reports it
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
