"""The account of a measurement's processor time, beside what the kernel says to whoever waits for a process."""

import os
import resource
import subprocess
import sys

import pytest
from benchmarks.followed import Ledger, accounts

_BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()\n"
_IGNORE = (
    "import signal, subprocess, sys\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
    "child.wait()\n"  # which raises nothing: it is told that there is no such child
    "print('ended', flush=True)\n"
    "sys.stdin.read()\n"
)
_KILLED = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\n"


def used_s() -> float:
    """What the kernel says of this process, and of the children for which it has waited."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def started(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_child_that_is_waited_for_counts_once() -> None:
    ledger, before_s = Ledger(os.getpid()), used_s()
    began_s = ledger.total_s
    with started(_BURN) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        ledger.look()
        assert ledger.total_s - began_s > 0.45
        child.communicate("\n")
    ledger.look()
    assert ledger.total_s - began_s == pytest.approx(used_s() - before_s, abs=0.05)


def test_a_child_for_which_nobody_waits_counts_too() -> None:
    ledger = Ledger(os.getpid())
    with started(_IGNORE, _BURN) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "done\n"
        ledger.look()
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ended\n"
        assert accounts()[parent.pid].waited_for_s == 0
        with_child_s = ledger.total_s
        ledger.look()
        parent.stdin.close()
    ledger.look()
    assert ledger.total_s >= with_child_s > 0.45


def test_a_child_whose_parent_was_killed_still_belongs_to_it() -> None:
    ledger = Ledger(os.getpid())
    began_s = ledger.total_s
    parent = started(_KILLED, _BURN)
    assert parent.stdout is not None
    assert parent.stdin is not None
    assert parent.stdout.readline() == "done\n"
    ledger.look()
    [child] = [pid for pid, one in accounts().items() if one.parent == parent.pid]
    parent.kill()
    parent.wait()
    ledger.look()
    assert accounts()[child].parent != parent.pid
    before_s = ledger.total_s
    assert before_s - began_s > 0.45
    os.kill(child, 9)
    parent.stdin.close()
    parent.stdout.close()
    ledger.look()
    assert ledger.total_s >= before_s
