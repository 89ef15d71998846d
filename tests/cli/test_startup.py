"""Help and mistakes are answered at once, by every command: one clear message, and nothing heavy is imported for it."""

import importlib
import inspect
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from fork_cases import Answer, answers
from typer.main import get_command

from whet.cli import COMMANDS
from whet.cli.examples import EXAMPLES

WRONG = {"N": "x", "NUMBER": "x", "TIME": "5 x", "SIZE": "x", "HOW": "nope", "GOAL": "nope", "LIMITS": "x"}

# what names nothing, for each command: a new command has to be listed here
UNKNOWN: dict[str, list[str]] = {
    "tune": [
        "digts-cnn", "digits-cnn-trainig", "none.py:build", "net.py:bild", "broken.py:build", "none.such:build",
        "hf:none", "hf:empty", "hf:", "digits-cnn?device=tpu", "digits-cnn nope", "empty",
        "digits-cnn --exclude int8", "net.py:build --exclude nope", "digits-cnn-training --exclude int8_static",
        "digits-cnn --training nope", "hf:hub --train none.txt", "hf:hub?batch=x", "hf:hub?nope=1",
        "-- python none.py", "-- nopython none.py", "--exclude nope -- python train.py", "--allow-batch digits-cnn",
        "signs-stream --source none.mp4", "signs-stream --data none.tar", "signs-stream --sampler nope",
        "digits-cnn --steps 3", "signs-stream --objective memory", "--objective size digits-cnn-training",
    ],
    "run": ["--recipe none.toml -- python train.py", "--recipe empty.toml -- python none.py",
            "--recipe broken.toml -- python train.py", "--recipe empty.toml -- nopython train.py"],
    "train": ["none.toml", "broken.toml", "empty.toml nope.key=1", "empty.toml --tune nope"],
    "plan": ["none", "empty", "broken.toml", "empty.toml", "net.py", "hub --gpus 0", "hub --gpu nope", "hub --gpus 12",
             "hub --gpus 8 --global-batch-size 7", "hub --cluster none.toml", "hub --serve", "hub --rate 3",
             "hub --serve --rate 1 --nodes 2", "hub --serve --rate 1 --precision float32", "hub --tokens -1",
             "hub --price 0", "hub --gpus 8 --nodes 3"],
    "apply": ["none.toml digits-cnn --out new", "broken.toml digits-cnn --out new",
              "empty.toml digts-cnn --out new", "empty.toml none.py:build --out new",
              "empty.toml digits-cnn --out empty"],
    "bench": ["digts-cnn", "none.py:build", "net.py:bild", "hf:none", "digits-cnn --compare none.json",
              "digits-cnn --batch 1,x", "digits-cnn --save none/x.json", "digits-cnn --plot x.gif --batch 1,2"],
    "profile": ["digts-cnn", "none.py:build", "net.py:bild", "--step none.py:build", "--nvtx digts-cnn",
                "--trace none.json", "", "digits-cnn --depth 0"],
    "audit": ["--select NOPE1 train.py", "--explain NOPE1", "train.py --baseline none.json"],
    "techniques": ["sdpa", "int8-dynamc", "nope"],
    "doctor": ["nope"],
    "limits": ["nope"],
    "serve": ["none", "net.py", "--model a=none", "--model none", "", "docs-gpt --draft none",
              "docs-gpt --recipe none.toml", "docs-gpt --ssl-certfile none.pem", "docs-gpt --tool-call-parser nope",
              "docs-gpt --port 99999"],
    "bench-serve": ["none --rate 1", "docs-gpt --trace none.csv", "docs-gpt", "docs-gpt --rate -1",
                    "docs-gpt --rate 1 --input-len x", "http://127.0.0.1:1 --rate 1 -- --port 1"],
    "stream": ["nope", "digits-cnn", "empty", "none.py:build", "signs-stream?x=1", "--source none.mp4",
               "--source synthetic:x", "--sink nope", "--sampler nope", "--dtype nope", "--device nope",
               "--backend nope", "--size x", "--guidance nope", "--guidance self:x", "--strength 2", "--out x",
               "--prompt-embeds none.safetensors", "--page --live", "--drift 60 --live", "--host 0.0.0.0"],
    "chat": ["none", "net.py"],
    "monitor": ["-- none-such-program", "--port 99999 -- true", "--interval 1ms -- true"],
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a file and a model of each kind that is wrong in one way."""
    made = tmp_path_factory.mktemp("startup")
    (made / "net.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(8, 8), torch.randn(4, 8)\n")
    (made / "train.py").write_text("raise SystemExit('it ran')\n")
    (made / "broken.py").write_text("def build(:\n")
    (made / "broken.toml").write_text("= 1\n")
    (made / "empty.toml").write_text("")
    (made / "empty").mkdir()
    (made / "hub").mkdir()
    (made / "hub" / "config.json").write_text('{"model_type": "llama"}')
    (made / "models" / "llama").mkdir(parents=True)
    (made / "models" / "llama" / "config.json").write_text('{"model_type": "llama"}')
    (made / "hub" / "model.safetensors").write_bytes(b"")
    (made / "hub" / "tokenizer.json").write_text("{}")
    return made


def parameters(command: str) -> list[Any]:
    """Return the typer parameters of a command; none of one that argparse parses."""
    function = getattr(importlib.import_module(COMMANDS[command][0]), command.replace("-", "_"), None)
    if not inspect.isfunction(function) or hasattr(importlib.import_module(COMMANDS[command][0]), "main"):
        return []
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(get_command(app).params)


def wrong_values(command: str) -> Iterator[tuple[str, str]]:
    """Yield each option whose value can be wrong, with a wrong value."""
    for param in parameters(command):
        info = param.type_descriptor
        kind = next(iter(getattr(info.annotation, "__args__", ())), info.annotation)
        option = max(param.opts, key=len)
        if not option.startswith("--") or param.is_flag:
            continue
        if info.choices:
            yield option, "nope"
        elif kind in (int, float):
            yield option, "x"
        elif param.metavar in WRONG:
            yield option, WRONG[param.metavar]


def lines(command: str) -> dict[str, list[str]]:
    """Return the command lines that are wrong, by what is wrong with them."""
    example = shlex.split(EXAMPLES[command][0])[2:]
    own = example[: example.index("--")] if "--" in example else example
    rest = example[len(own) :]
    wrong = {f"{option} {value}": [*own, option, value, *rest] for option, value in wrong_values(command)}
    wrong |= {text: shlex.split(text) for text in UNKNOWN[command]}
    return {"--nope": [*own, "--nope", *rest]} | wrong


@pytest.fixture(scope="module")
def asked(directory: Path) -> dict[tuple[str, str], Answer]:
    """Return what each wrong command line, and each help, came to."""
    cases = [(command, name, line) for command in COMMANDS for name, line in lines(command).items()]
    cases += [(command, "--help", ["--help"]) for command in COMMANDS]
    found = answers([[command, *line] for command, _, line in cases], directory)
    return {(command, name): answer for (command, name, _), answer in zip(cases, found, strict=True)}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_wrong_is_said_at_once(command: str, asked: dict[tuple[str, str], Answer]) -> None:
    for name in lines(command):
        answer = asked[command, name]
        about = f"whet {command} {name}: {answer}"
        assert answer.code == 2, about
        assert answer.out == "", about
        assert answer.err.startswith("error: ") and answer.err.count("\n") == 1, about
        assert answer.heavy == [], about
        if name.startswith("--") and name.count(" ") == 1 and name not in UNKNOWN[command]:
            assert name.split()[0] in answer.err, about


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_shown_at_once_and_ends_with_its_examples(command: str, asked: dict[tuple[str, str], Answer]) -> None:
    answer = asked[command, "--help"]
    assert (answer.code, answer.err, answer.heavy) == (0, "", [])
    last = [line.strip() for line in answer.out.splitlines() if line.strip()][-3:]
    assert last == ["examples:", *EXAMPLES[command]]
    assert max(map(len, answer.out.splitlines())) <= 80


def test_the_auditor_names_a_file_that_is_not_there(directory: Path) -> None:
    [answer] = answers([["audit", "none.py"]], directory)
    assert (answer.code, answer.heavy) == (2, [])
    assert "none.py: there is no such file" in answer.err


def test_each_example_is_parsed_by_its_command() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    for command, examples in EXAMPLES.items():
        for example in examples:
            assert len(example) < 78  # help indents it, and does not break it
            whet, name, *words = shlex.split(example)
            assert (whet, name) == ("whet", command)
            _parse(command, words)
    assert len({example for pair in EXAMPLES.values() for example in pair}) == 2 * len(EXAMPLES)


def _parse(command: str, words: list[str]) -> None:
    """Parse words by a command's own options. Raises what the parser raises."""
    module = importlib.import_module(COMMANDS[command][0])
    for maker in ("_parser", "parser_of"):
        if hasattr(module, maker):
            own = words[: words.index("--")] if "--" in words else words
            getattr(module, maker)().parse_intermixed_args(own)
            return
    app = typer.Typer(add_completion=False)
    app.command()(getattr(module, command.replace("-", "_")))
    get_command(app).make_context(command, list(words))


def test_versions_and_help_are_answered_in_every_form(directory: Path) -> None:
    forms = [["--version"], ["-V"], ["-v"], ["version"]]
    heads = [[], ["--help"], ["-h"], ["help"]]
    of_chat = [["chat", "--help"], ["chat", "-h"], ["help", "chat"]]
    found = answers([*forms, *heads, *of_chat, ["help", "nope"]], directory)
    assert {(answer.code, answer.out) for answer in found[:4]} == {(0, found[0].out)}
    assert found[0].out.startswith("whet ")
    assert {answer.out for answer in found[4:8]} == {found[4].out}
    assert all(f"  {command} " in found[4].out for command in COMMANDS)
    assert {answer.out for answer in found[8:11]} == {found[8].out}
    assert found[11].code == 2 and "there is no command 'nope'" in found[11].err
