"""The kernels of graphs do nothing that C++ leaves undefined, and stay within their memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whet.kernels.build import Isa, supported

TESTS = sorted(Path(__file__).parent.glob("test_graph_*.py"))
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1"


@pytest.mark.slow
@pytest.mark.parametrize("isa", Isa)
def test_graphs(isa: Isa, tmp_path: Path) -> None:
    """Their tests are run on a build with sanitizers, which end the process where they find something."""
    if isa not in supported():
        pytest.skip(f"this processor cannot run {isa}")
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nexec c++ "$@" {FLAGS}\n')
    compiler.chmod(0o755)
    found = subprocess.run(["c++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "CXX": str(compiler),
        "WHET_CACHE": str(tmp_path / "cache"),
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
    }
    chosen = f"{isa}- or {isa}]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, TESTS), "-k", chosen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert " passed" in done.stdout
