"""Wrong use of any command is one line on standard error, which names the option, and exit code 2."""

import logging
from pathlib import Path

import pytest

import whet
from whet.cli import FUNCTIONS, main, notices


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("error: ").rstrip()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve --port abc", "--port takes a whole number; got 'abc'"),
        ("serve --port", "--port takes a value, and none is given"),
        ("serve --port 99999 docs-gpt", "--port takes 0 (any free port) to 65535; got 99999"),
        ("monitor --port 99999 -- true", "--port takes 0 (any free port) to 65535; got 99999"),
        ("serve --kv x", "--kv takes as-is or int8; got 'x'"),
        ("chat --max-tokens 0 docs-gpt", "--max-tokens takes a whole number of 1 or more; got '0'"),
        ("chat --temperature hot docs-gpt", "--temperature takes a number; got 'hot'"),
        ("chat docs-gpt b", "b is an argument too many; whet chat --help lists what there is"),
        ("tune", "TARGET... is missing; whet tune --help says what it is"),
        ("tune --resume=3 a", "--resume takes no value"),
        ("tune --objective fast digits-cnn", "--objective takes latency, throughput, memory or size; got 'fast'"),
        ("tune --budget 5x digits-cnn", "--budget '5x': write a duration above 0 such as 5m, 90s or 1h"),
        ("tune --max-drop 100% docs-gpt", "--max-drop '100%': write a fraction from 0 to below 1, such as 0.01 or 1%"),
        ("bench --tolerance x docs-gpt", "--tolerance 'x': write a fraction such as 0.03, or 3%"),
        ("bench --tolerance 300% docs-ssm",
         "--tolerance must lie between 0 and 1: 0.02 or 2% allows two percent; got 3"),
        ("tune --quick a", "there is no option --quick; whet tune --help lists what there is"),
        ("audit --steps abc .", "--steps takes a whole number; got 'abc'"),
        ("audit --steps", "--steps takes a value, and none is given"),
        ("audit --fix=3", "--fix takes no value; got '3'"),
        ("audit --foo", "there is no option --foo; whet audit --help lists what there is"),
        ("bench signs-stream",
         "signs-stream is a stream of frames; whet stream runs it, and whet tune makes it faster"),
        ("profile signs-stream",
         "signs-stream is a stream of frames; whet stream runs it, and whet tune makes it faster"),
        ("doctor --foo", "there is no option --foo; whet doctor --help lists what there is"),
        ("doctor now", "now is an argument too many; whet doctor --help lists what there is"),
        ("limits now then", "now then is an argument too many; whet limits --help lists what there is"),
        ("run --recipe none.toml -- python none.py", "there is no script none.py; name a Python file that exists"),
        ("run --recipe none.toml -- python -m json.tool", "none.toml does not exist; `whet tune` writes one"),
        ("apply none.toml digits-cnn --out x", "none.toml does not exist; `whet tune` writes one"),
    ],
)  # fmt: skip
def test_one_line_names_the_option(capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    assert refusal(capsys, line.split()) == said


def test_the_choices_of_the_auditor_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, ["audit", "--output-format", "x", "."])
    assert said.startswith("--output-format takes one of ")
    assert said.endswith("; got 'x'")


def test_a_misspelt_option_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, ["bench", "--budgett", "3", "a"])
    assert said.startswith("there is no option --budgett; did you mean --budget? ")


def test_a_misspelt_command_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, ["serv", "docs-gpt"])
    assert said.startswith("there is no command 'serv'; did you mean serve? there are: tune, ")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_without_a_command_is_pointed_out(capsys: pytest.CaptureFixture[str], name: str) -> None:
    said = refusal(capsys, [name, "a", "b"])
    assert said.startswith(f"there is no command {name!r}; there are: tune, ")
    assert f"{name} is a function: whet.{name}(" in said
    assert callable(getattr(whet, name))


def test_a_notice_is_a_plain_line_and_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("whet.kernels")
    handlers, level = list(log.handlers), log.level
    try:
        notices.show()
        notices.show()
        log.info("compiling")
        assert capsys.readouterr().err == "compiling\n"
    finally:
        log.handlers[:] = handlers
        log.setLevel(level)


@pytest.mark.parametrize("line", ["tune nosuch --help", "train nosuch.toml --help", "techniques nosuch -h"])
def test_help_is_shown_whatever_stands_beside_it(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 0
    assert "usage: whet" in capsys.readouterr().out.lower()


def test_options_of_a_training_are_not_taken_for_those_of_a_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("x")
    said = refusal(capsys, ["tune", f"hf:{tmp_path}?lr=1e-4", "--train", str(tmp_path / "text.txt")])
    assert "bad option" not in said
