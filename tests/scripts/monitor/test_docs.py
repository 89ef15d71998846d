"""The commands of docs/monitor.md that need a train.py, run on the page's own one-line program.

The page's fenced blocks run with those of every other page, in tests/acceptance.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "monitor.md"
COMMAND = re.compile(r"^    (whet monitor .*)$", re.MULTILINE)
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_run(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(PROGRAM.findall(text)[0], encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    commands = COMMAND.findall(text)
    assert commands
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        variables = {**os.environ, "PATH": path}
        done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    for directory in ("runs/today", "runs/one-line"):  # watched from outside, and by its one line
        summary = json.loads((tmp_path / directory / "summary.json").read_text(encoding="utf-8"))
        assert 58 <= summary["num_steps"] <= 60
        assert summary["num_samples"] == 32 * summary["num_steps"]
