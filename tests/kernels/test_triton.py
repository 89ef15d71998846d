"""The kernels in Triton, by Triton's interpreter on the CPU: the tests of tests/gpu that need no more, in one process.

The interpreter is chosen before triton is imported, so that a process of its own is needed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("test_cross_entropy.py", "test_selective_scan.py", "test_causal_conv.py")


def test_kernels_in_triton_compute_what_they_should() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: it has no package for this machine")
    files = [f"tests/gpu/{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
