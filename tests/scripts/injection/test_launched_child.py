"""What is read of a launcher's log once a process has failed."""

from pathlib import Path

import pytest

from whet.scripts.injection.launched_child import told_before_report


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "W1128 15:41:55.645000 12 torch/distributed/run.py:874] Setting OMP_NUM_THREADS\n"
            "step 3\n[rank1]: Traceback (most recent call last):\n[rank1]:   File 'train.py'\n"
            "[rank1]: ValueError: no data here\n[rank0]: RuntimeError: Connection closed by peer\n"
            "E1128 15:47:18.359 16 torch/x.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 9)\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n==== train.py FAILED\n",
            "ValueError: no data here",
        ),
        (
            "Traceback (most recent call last):\n  File 'train.py'\nEOFError: EOF when reading a line\n"
            "Traceback (most recent call last):\nsubprocess.CalledProcessError: Command '['python']' returned\n",
            "EOFError: EOF when reading a line",
        ),
        ("", ""),
    ],
)
def test_the_failure_is_the_script_s_and_not_the_launcher_s(tmp_path: Path, log: str, told: str) -> None:
    (tmp_path / "log.txt").write_text(log)
    assert told_before_report(tmp_path / "log.txt") == told
