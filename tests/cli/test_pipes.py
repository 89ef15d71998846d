"""Where output goes when nobody reads it."""

import os
import subprocess
import sys

import pytest

HELP = [sys.executable, "-m", "whet", "--help"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_left_is_no_error(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(HELP, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_output_is_no_error() -> None:
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *HELP], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
