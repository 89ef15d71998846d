"""whet-audit installs alone, into an environment without torch and whet, and works there.

pip fetches what it needs from a package index, so these tests are in the second tier, and fail where there is none.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
LOOP = """
import torch

for x, y in torch.utils.data.DataLoader(data):
    loss = criterion(model(x.cuda()), y.cuda())
    loss.backward()
    total += loss.item()
"""

pytestmark = pytest.mark.thorough


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that sees no packages but those of its own environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs of a fresh environment that whet-audit alone was installed into."""
    place = tmp_path_factory.mktemp("installed")
    made = run(sys.executable, "-m", "venv", "environment", cwd=place)
    assert made.returncode == 0, made.stderr
    programs = place / "environment" / "bin"
    pip = (str(programs / "python"), "-m", "pip", "--disable-pip-version-check")
    done = run(*pip, "install", "--quiet", str(PACKAGE), cwd=place)
    assert done.returncode == 0, f"this test needs a package index, from which pip fetches libcst:\n{done.stderr}"
    listed = json.loads(run(*pip, "list", "--format", "json", cwd=place).stdout)
    names = {entry["name"].lower() for entry in listed}
    assert "whet-audit" in names
    assert not names & {"torch", "torch-whet", "numpy", "pydantic", "typer", "rich"}
    return programs


def test_it_finds_fixes_and_ends_with_the_codes_of_its_page(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    program = str(programs / "whet-audit")
    found = run(program, "train.py", "--json", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "SYN101" in {finding["code"] for finding in json.loads(found.stdout)["findings"]}
    assert run(program, "train.py", "--select", "SYN999", cwd=tmp_path).returncode == 2
    assert run(program, "train.py", "--fix", "--unsafe-fixes", cwd=tmp_path).returncode in (0, 1)
    assert (tmp_path / "train.py").read_text() != LOOP
    (tmp_path / "clean.py").write_text("x = 1\n")
    assert run(program, "clean.py", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("output_format", ["full", "concise", "json", "github", "sarif", "markdown", "html"])
def test_every_format_has_the_files_that_it_needs(programs: Path, tmp_path: Path, output_format: str) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    shown = run(
        str(programs / "python"), "-m", "whet_audit", "train.py", "--output-format", output_format, cwd=tmp_path
    )
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "SYN101" in shown.stdout
