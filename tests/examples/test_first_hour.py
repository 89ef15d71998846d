"""The notebook runs from its first cell to its last, in an empty directory, and what it shows names no place here."""

import getpass
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.techniques import TABLE

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"

# In a process of its own: the kernel's libraries warn, and tests take warnings for errors.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the notebook's cells of a kind."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


# Run by the kernel before the first cell.
FORK = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
import pytest, forked_children
forked_children.use(pytest.MonkeyPatch())
sys.path.pop()
"""


@pytest.mark.timeout(420)
@pytest.mark.usefixtures("children_server")
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    copy = tmp_path / "first_hour.ipynb"
    # The techniques have tests of their own, and take longer than this one may.
    text = NOTEBOOK.read_text(encoding="utf-8")
    short, num = re.subn(r"EXCLUDED = \[[^\]]*\]", f"EXCLUDED = {list(TABLE)}", text)
    assert num == 1
    copy.write_text(short, encoding="utf-8")
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "fork.py").write_text(FORK, encoding="utf-8")
    there = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(copy)], cwd=tmp_path, env=there, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outputs = [output for cell in cells(copy, "code") for output in cell["outputs"]]
    tables = [output for output in outputs if "text/html" in output.get("data", {})]
    assert len(tables) == 3  # the tuning run, the comparison and the profile
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert (tmp_path / "tuned" / "report.html").is_file()


def test_its_outputs_name_no_user_host_or_directory() -> None:
    text = json.dumps([cell["outputs"] for cell in cells(NOTEBOOK, "code")])
    assert cells(NOTEBOOK, "markdown")
    names = {str(Path.home()), str(Path.cwd()), "/home/", "/root", "/tmp", "/Users/", socket.gethostname()}
    if getpass.getuser() != "root":
        names.add(getpass.getuser())
    for name in names - {"/", "localhost"}:
        assert name not in text
