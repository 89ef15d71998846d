"""Completion answers bash, zsh and fish by typer's protocol, knows every command's options, and never imports torch."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whet.cli import completion_table
from whet.cli.commands import COMMANDS
from whet.cli.completion import join_at_colons, techniques
from whet.techniques import TABLE
from whet.techniques.training import TRAINING_TABLE
from whet.workloads import BUILTIN, BUILTIN_STREAMS, BUILTIN_TRAINING

WHET = [sys.executable, "-P", "-m", "whet"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a target's file and a model's directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import no_such_module\n\ndef build():\n    ...\n\ndef _hidden():\n    ...\n")
    (tmp_path / "models" / "small").mkdir(parents=True)
    return tmp_path


def asked(shell: str, *words: str) -> list[str]:
    """Return what whet completes the last word to, when a shell asks."""
    line = " ".join(("whet", *words))
    of_shell = {
        "bash": {"COMP_WORDS": "\n".join(("whet", *words)), "COMP_CWORD": str(len(words))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    there = {**os.environ, "_WHET_COMPLETE": f"complete_{shell}", **of_shell}
    done = subprocess.run(WHET, env=there, capture_output=True, text=True, check=True)
    if shell == "zsh":
        return re.findall(r'^(?:_arguments \'\*: :\(\()?"([^"]*)"', done.stdout.replace("\\\\:", ":"), re.MULTILINE)
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


SHELLS = pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])


@SHELLS
def test_commands_options_and_values(shell: str) -> None:
    assert asked(shell, "") == list(COMMANDS)
    assert asked(shell, "bench-") == ["bench-serve"]
    assert asked(shell, "tune", "--max") == ["--max-drop", "--max-slowdown", "--max-memory"]
    assert asked(shell, "tune", "--on-busy", "") == ["wait", "inconclusive", "go-on"]
    assert asked(shell, "audit", "--output-format", "s") == ["sarif"]
    assert asked(shell, "serve", "docs-gpt", "--weights", "int") == ["int8", "int4"]


@SHELLS
def test_targets(shell: str) -> None:
    rest = ["hf:", "mine.py:", "models/"]
    assert asked(shell, "tune", "digits-cnn", "") == [*BUILTIN, *BUILTIN_TRAINING, *BUILTIN_STREAMS, *rest]
    assert asked(shell, "profile", "") == [*BUILTIN, *BUILTIN_TRAINING, *rest]
    assert asked(shell, "stream", "") == [*BUILTIN_STREAMS, "mine.py:", "models/"]
    assert asked(shell, "bench", "m") == ["mine.py:", "models/"]
    assert asked(shell, "serve", "docs-gpt", "--draft", "models/") == ["models/small/"]
    if shell != "bash":  # bash splits words at colons
        assert asked(shell, "tune", "mine.py:") == ["mine.py:build"]
        assert asked(shell, "tune", "hf:mod") == ["hf:models/"]


@SHELLS
def test_techniques_that_are_named_already_are_left_out(shell: str) -> None:
    assert asked(shell, "tune", "digits-cnn", "--exclude", "bf16,int8_d") == ["bf16,int8_dynamic"]
    assert "bf16,bf16" not in asked(shell, "tune", "digits-cnn", "--exclude", "bf16,b")


def test_bash_replaces_what_stands_after_a_colon() -> None:
    assert asked("bash", "tune", "hf", ":", "mod") == ["models/"]
    assert asked("bash", "tune", "mine.py", ":") == ["build"]
    words = {"COMP_WORDS": "whet\ntune\na.py\n:\nf\n--out\nx:", "COMP_CWORD": "4"}
    assert join_at_colons(words) == "a.py:"
    assert words == {"COMP_WORDS": "whet\ntune\na.py:f", "COMP_CWORD": "2"}


def test_bash_itself(here: Path) -> None:
    """The script that `--show-completion` prints, run by bash with a `whet` on its path."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    (here / "bin").mkdir()
    (here / "bin" / "whet").write_text(f'#!{bash}\nexec {sys.executable} -P -m whet "$@"\n')
    (here / "bin" / "whet").chmod(0o755)
    script = subprocess.run([*WHET, "--show-completion"], capture_output=True, text=True, check=False).stdout
    if "complete -o" not in script:  # another shell runs the tests
        pytest.skip("typer takes another shell for this one")
    asks = "COMP_WORDS=(whet tune hf : mod); COMP_CWORD=4; _whet_completion whet; printf '%s\\n' \"${COMPREPLY[@]}\""
    there = {**os.environ, "PATH": f"{here / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", f"{script}\n{asks}"], env=there, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["models/"]


def test_the_file_says_what_the_commands_declare() -> None:
    """Where this fails, run `python -m whet.cli.completion_table`."""
    written = completion_table.FILE.read_text(encoding="utf-8")
    assert json.loads(written) == completion_table.table()
    assert written == completion_table.text()


def test_every_technique_is_completed() -> None:
    assert set(techniques("")) == {*TABLE, *TRAINING_TABLE}


@pytest.mark.parametrize("words", ["tune ", "tune --", "serve --weights ", "tune a --exclude "])
def test_completion_imports_no_large_library(words: str) -> None:
    code = (
        "import sys\nfrom whet.cli import main\ntry:\n    main([])\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'scipy', 'optuna'}))"
    )
    there = {**os.environ, "_WHET_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"whet {words}"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=there, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
