"""Wait for a launcher of several processes, end those that it leaves or that wait in vain, and read why one failed."""

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

import psutil

from whet.scripts.injection.messages import VARIABLE
from whet.scripts.injection.rank_place import problem_of

_POLL_S = 0.1
_LONGEST = 300  # characters of a line
_REPORT = re.compile(r"failed \(exitcode|^subprocess\.CalledProcessError")  # what launchers write of a failure
_OF_RANK = re.compile(r"\[rank\d+\]: ")  # before each line of a traceback, where there is a process group
_OWN_LINE = re.compile(rf"[IWE]\d{{4}} |({_OF_RANK.pattern})?(Traceback \(most|\s|$)")  # of logs, and of tracebacks
_GRACE_S = 10.0  # in which processes end once one of them has refused, or once they were asked to


def wait_for_launcher(child: "subprocess.Popen[bytes]", messages: Path) -> int:
    """Wait for a launcher, and return its exit code. Once a process refuses to train, all of them are ended."""
    refused_at = 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL_S)
        if not refused_at and problem_of(messages):
            refused_at = time.monotonic()
        if refused_at and time.monotonic() > refused_at + _GRACE_S:
            end_processes_of(messages)


def end_processes_of(messages: Path) -> None:
    """End all processes of a run, by the directory of messages in their environment: a parent may have ended before."""
    found = [process for process in psutil.process_iter() if _is_of(process, messages)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(found, timeout=_GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _is_of(process: psutil.Process, messages: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.pid != os.getpid() and process.environ().get(VARIABLE) == str(messages)
    return False


def told_before_report(log: Path) -> str:
    """Return what a script said of its failure, before its launcher reported that; "" where it said nothing.

    Of several processes, the first error counts, since it may have broken off what the others waited for. Otherwise the
    last line counts.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    end = next((i for i, line in enumerate(lines) if _REPORT.search(line)), len(lines))
    told = [line for line in lines[:end] if not _OWN_LINE.match(line)]
    of_ranks = [line for line in told if _OF_RANK.match(line)]
    line = of_ranks[0] if of_ranks else (told[-1] if told else "")
    return _OF_RANK.sub("", line).strip()[:_LONGEST]
