"""--help of what serves, asks and watches: every option says what it is, and nothing of that is lost."""

import importlib
import re
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.main import get_command

from whet.cli import COMMANDS, main

# what is said of defaults that are no value
DEFAULTS = {
    "serve": ["(bf16)", "(as-is)", "(what the model", "(a quarter of", "(the directory's", "[default: 8000]"],
    "chat": ["(random)", "[default: 0.7]"],
    "bench-serve": ["(0.7)", "(60s, or what", "(so that the longest fits)", "(no limit)"],
    "monitor": ["(8765, or any", "(the script's name)"],
}


def options(name: str) -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(getattr(importlib.import_module(COMMANDS[name][0]), name.replace("-", "_")))
    return get_command(app).params


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_option_says_what_it_is(name: str) -> None:
    for option in options(name):
        text = option.help or ("hidden" if getattr(option, "hidden", False) else "")
        assert len(text) > 5, option.name
        assert Text.from_markup(text).plain == text, f"{option.name}: rich takes [...] for markup"


@pytest.mark.parametrize("name", DEFAULTS)
def test_it_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert max(map(len, said.splitlines())) <= 80
    assert [default for default in DEFAULTS[name] if default not in said] == []
    assert "…" not in said  # nothing is cut off


TYPED = [name for name in COMMANDS if name not in ("audit", "doctor")]


@pytest.mark.parametrize("name", TYPED)
def test_no_type_of_python_is_shown(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert max(map(len, said.splitlines())) <= 80
    assert not re.search(r"<[a-z]+|[{}]|list\[", said)


def test_values_have_names_and_flags_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["apply", "--help"])
    said = capsys.readouterr().out
    assert "whet apply [OPTIONS] RECIPE TARGET" in said
    assert re.search(r"--out +DIR +a new directory", said)
    assert re.search(r"--force +apply it", said)
    assert re.search(r"--help +-h +Show this", said)
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    said = capsys.readouterr().out
    assert re.search(r"--depth +N +how deep", said)
    assert re.search(r"--trace +FILE +a trace", said)
