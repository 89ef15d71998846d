"""Run a script as its own process would, in a fork that has torch already: only how it starts differs.

Of a script that torchrun starts, each rank is such a fork, with the environment that torchrun gives it.
"""

import atexit
import json
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch import distributed

import forked_children
from whet.measure.isolate import ARGUMENTS, Child, Job
from whet.scripts.injection.attach import begin
from whet.scripts.injection.launchers import launcher_length
from whet.scripts.injection.launching import script_index
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
    """Be `python SCRIPT ARGUMENTS...`, or `torchrun --nproc-per-node N SCRIPT ARGUMENTS...`. Never return."""
    if launcher_length(words):
        os._exit(_launch(words))
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


def _launch(words: list[str]) -> int:
    """Start the ranks, and return the exit code of the first that failed, whose failure ends the others."""
    place, size = script_index(words), int(words[words.index("--nproc-per-node") + 1])
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = {}
    for rank in range(size):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        variables |= {"GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        pid = os.fork()
        if pid == 0:
            os.environ.update({name: str(value) for name, value in variables.items()})
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            run([sys.executable, *words[place:]])
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        del ranks[pid]
        if code := os.waitstatus_to_exitcode(status):
            for other in ranks:
                os.kill(other, signal.SIGTERM)
            return code if code > 0 else 1
    return 0
