"""`whet_audit.audit.audit` and `whet-audit`: the same findings, the same files. With a toy engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from whet_audit.audit import audit
from whet_audit.cli import main
from whet_audit.errors import AuditError, OutputError
from whet_audit.formats import render

LOOP = "for x in loader:\n    x.to(device)\n    x.cuda()\n    x.item()\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: None) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LOOP, encoding="utf-8")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main(["train.py", "--json", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ([], {}),
        (["--select", "SYN,MOV101"], {"select": ["SYN", "MOV101"]}),
        (["--ignore", "SYN"], {"ignore": ["SYN"]}),
        (["--fix"], {"fix": True}),
        (["--fix", "--unsafe-fixes"], {"fix": True, "unsafe_fixes": True}),
    ],
)
def test_the_command_and_the_function_do_the_same(
    options: list[str], given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, *options)
    by_command = Path("train.py").read_text(encoding="utf-8")
    Path("train.py").write_text(LOOP, encoding="utf-8")
    outcome = audit("train.py", **given)
    assert json.loads(render(outcome.report, "json")) == found
    assert Path("train.py").read_text(encoding="utf-8") == by_command
    assert (by_command != LOOP) == bool(given.get("fix"))


def test_unsafe_fixes_alone_write_nothing() -> None:
    with pytest.raises(AuditError, match="give fix=True as well"):
        audit("train.py", unsafe_fixes=True)
    assert Path("train.py").read_text(encoding="utf-8") == LOOP


def test_changes_may_be_had_without_being_written() -> None:
    outcome = audit(["train.py"], fix=True, write=False)
    assert outcome.changes[0].text == LOOP.replace("to(device)", "to(device, non_blocking=True)")
    assert Path("train.py").read_text(encoding="utf-8") == LOOP


def test_a_baseline_is_written_and_read(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = audit("train.py", baseline="known.json", write_baseline="known.json")
    assert len(outcome.findings) == 3
    written = Path("known.json").read_text(encoding="utf-8")
    shown(capsys, "--write-baseline", "again.json")
    assert Path("again.json").read_text(encoding="utf-8") == written
    assert audit(Path("train.py"), baseline="known.json").report.num_known == 3


def test_a_file_that_cannot_be_written_is_said_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("second.py").write_text(LOOP, encoding="utf-8")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "train.py")
    outcome = audit(["train.py", "second.py"], fix=True)
    assert outcome.failures == ("train.py: not fixed: it may not be written",)
    assert Path("second.py").read_text(encoding="utf-8") != LOOP


def test_what_is_wrong_is_raised() -> None:
    with pytest.raises(AuditError, match="there is no code 'NO'"):
        audit("train.py", select=["NO"])
    with pytest.raises(AuditError, match="nowhere"):
        audit("train.py", baseline="nowhere.json")
    with pytest.raises(OutputError):
        audit("train.py", write_baseline="nowhere/known.json")
