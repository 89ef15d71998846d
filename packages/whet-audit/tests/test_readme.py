"""What README.md shows runs as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from whet_audit.cli import PROGRAM, main

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_its_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("src").mkdir()
    Path("train.py").write_text("x = 1\n")
    blocks = _BLOCK.findall(TEXT)
    assert {language for language, _ in blocks} == {"sh", "python"}
    for language, body in blocks:
        if language == "python":
            exec(body, {})
        for line in body.splitlines() if language == "sh" else ():
            program, *arguments = shlex.split(line)
            assert program == PROGRAM
            assert main(arguments) == 0, line
