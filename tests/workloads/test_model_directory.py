"""Directories and names of models, and who takes them."""

from pathlib import Path

import pytest

from whet.cli import main
from whet.errors import TargetError
from whet.workloads import WEIGHTS
from whet.workloads.model_directory import BUILT_IN, model_directory


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_name_is_a_model_that_comes_with_whet(name: str) -> None:
    assert model_directory(name) == WEIGHTS / name
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {path.name for path in (WEIGHTS / name).iterdir()}


def test_a_directory_goes_before_a_name(here: Path) -> None:
    (here / "docs-gpt").mkdir()
    assert model_directory("docs-gpt") == Path("docs-gpt")


def test_neither(here: Path) -> None:
    (here / "file").touch()
    for named, said in (("docs-gtp", "is no directory"), ("file", "is a file and no directory")):
        with pytest.raises(TargetError, match=f"{named} {said}; give one with config.json.*built-in model: docs-gpt"):
            model_directory(named)


@pytest.mark.parametrize("command", [["serve"], ["chat"], ["bench-serve", "--rate", "1"]])
def test_every_command_says_it_alike(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "docs-gtp"])
    said = capsys.readouterr().err
    assert (end.value.code, said.count("\n")) == (2, 1)
    assert "docs-gtp is no directory; give one with" in said
