"""Others' training scripts in the checkouts that $WHET_FOREIGN names: each is recognised, and reproducible.

$WHET_FOREIGN_PYTHON is the Python that has what they import; see benchmarks/foreign_scripts.py.
"""

import os
import sys
from pathlib import Path

import pytest
from benchmarks.foreign_scripts import SCRIPTS, ForeignScript

from whet.scripts.injection.command import ScriptCommand, run_bounded
from whet.scripts.injection.messages import ScriptRequest

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.slow,
    pytest.mark.skipif("WHET_FOREIGN" not in os.environ, reason="$WHET_FOREIGN names no checkouts"),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_loop_is_found(script: ForeignScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(os.environ["WHET_FOREIGN"]) / script.directory)
    before = {path: path.stat().st_mtime_ns for path in Path.cwd().rglob("*") if path.is_file()}
    python = os.environ.get("WHET_FOREIGN_PYTHON", sys.executable)
    command = ScriptCommand.checked([python, *script.words])
    first, again = (run_bounded(command, ScriptRequest(num_steps=8), tmp_path, limit_s=200).record for _ in range(2))
    assert first is not None and again is not None
    assert len(first.losses) == 8 and first.losses == again.losses
    assert {"compile", "autocast"} <= {step.technique for step in first.applicable} | first.refused.keys()
    assert before == {path: path.stat().st_mtime_ns for path in Path.cwd().rglob("*") if path.is_file()}
