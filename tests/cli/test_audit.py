"""`whet audit` is `whet-audit` with `--measure`: the same output and exit codes, and whet's errors in Python."""

from pathlib import Path

import pytest

import whet
from whet.cli import main
from whet.errors import AuditError, OutputError, WhetError
from whet_audit import cli

SLOW = """
import torch

loader = torch.utils.data.DataLoader(data)
for x, y in loader:
    loss = criterion(model(x.cuda()), y.cuda())
    loss.backward()
    total += loss.item()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SLOW)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "train.py --json",
        "train.py --output-format sarif",
        "train.py --output-format github --select SYN",
        "train.py --diff --unsafe-fixes --preview",
        "train.py --fix --preview",
        "train.py --all --min-priority medium --exclude old",
        "train.py --fail-on high",
        "train.py --fail-on nope",
        "train.py --write-baseline known.json",
        "train.py --out found.txt",
        "--explain SYN101",
        "--explain NOPE1",
        "",
        "none.py",
        "train.py --unsafe-fixes",
        "train.py --select NOPE1",
        "train.py --output-format xml",
        "train.py --output-format",
        "train.py --fix=3",
        "train.py --nope",
        "train.py --baseline none.json",
        "train.py --out none/found.txt",
    ],
)
def test_both_commands_do_the_same(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(line.split())
    said, files = _said(capsys), _files(here)
    for path in here.iterdir():
        path.unlink()
    Path("train.py").write_text(SLOW)
    with pytest.raises(SystemExit) as ended:
        main(["audit", *line.split()])
    assert ended.value.code == code
    assert _said(capsys) == said
    assert _files(here) == files


def test_only_whet_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train.py", "--measure"]) == 2
    assert capsys.readouterr().err == "error: there is no option --measure; whet-audit --help lists what there is\n"


def test_a_report_gives_advice_for_the_machine_and_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "train.py", "--output-format", "markdown"])
    page = capsys.readouterr().out
    assert "This machine: " in page
    assert "whet audit train.py --fix --diff" in page
    assert cli.main(["train.py", "--output-format", "markdown"]) == 1
    page = capsys.readouterr().out
    assert "The machine is not known" in page
    assert "whet-audit train.py --fix --diff" in page
    assert "whet audit train.py --measure" in page


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"select": ["NOPE"]}, AuditError),
        ({"write_baseline": "none/known.json"}, OutputError),
        ({"unsafe_fixes": True}, AuditError),
    ],
)
def test_errors_are_those_of_whet(options: dict[str, object], error: type[WhetError]) -> None:
    with pytest.raises(error):
        whet.audit("train.py", **options)


def test_the_function_reads_and_repairs() -> None:
    outcome = whet.audit(["train.py"], preview=True, fix=True, unsafe_fixes=True, write=False)
    assert outcome.report.command == "whet audit train.py --preview"
    assert outcome.changes
    assert Path("train.py").read_text() == SLOW


def _said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what was printed, without what tells the two commands' names apart."""
    return [text.replace("whet audit", "whet-audit") for text in capsys.readouterr()]


def _files(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}
