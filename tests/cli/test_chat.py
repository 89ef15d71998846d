import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whet.cli import main
from whet.errors import RequestError
from whet.server.completion import Delta
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams


class FakeTokenizer:
    """A token a character; a conversation is written out as role: content."""

    chat_template = SimpleNamespace(is_plain=False)

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [0] * add_special + [ord(character) for character in text]

    def chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "|".join(f"{message['role']}: {message['content']}" for message in messages)


class FakeEngine:
    """Answers every prompt with the same pieces of text; a piece may be something to do instead."""

    pieces: tuple[Any, ...] = ("Well, ", "yes.")
    max_model_len = 200
    made: "list[FakeEngine]" = []  # noqa: RUF012  # of one test

    def __init__(self, model: Path, options: EngineOptions, *, tokenizer: FakeTokenizer) -> None:
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.asked: list[tuple[str, SamplingParams]] = []
        self.num_open = 0
        self.is_closed = False
        FakeEngine.made.append(self)

    def stream(self, prompt: list[int], params: SamplingParams) -> Generator[Delta, None, None]:
        self.asked.append(("".join(map(chr, prompt)), params))
        self.num_open += 1
        try:
            yield from self._deltas(len(prompt))
        finally:
            self.num_open -= 1

    def _deltas(self, num_prompt_tokens: int) -> Iterator[Delta]:
        for place, piece in enumerate(self.pieces):
            if callable(piece):
                piece()
                continue
            is_last = place == len(self.pieces) - 1
            yield Delta(
                "r", [1, 2], piece, finish_reason="stop" if is_last else None,
                num_prompt_tokens=num_prompt_tokens, num_cached_tokens=1, ttft_s=0.5, e2e_s=0.5 + place,
            )  # fmt: skip

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(
            prefix_cache_hits=30, prefix_cache_queries=40, num_accepted_tokens=0, num_draft_tokens=0,
            kv_cache_usage=0.25,
        )  # fmt: skip

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    FakeEngine.made = []
    (tmp_path / "DIR").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("whet.server.conversation.Tokenizer", FakeTokenizer)
    monkeypatch.setattr("whet.server.conversation.Engine", FakeEngine)
    yield
    assert all(engine.is_closed and engine.num_open == 0 for engine in FakeEngine.made)


class _Typed(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(monkeypatch: pytest.MonkeyPatch, given: str, *options: str, typed: bool = False) -> int:
    monkeypatch.setattr("sys.stdin", _Typed(given) if typed else io.StringIO(given))
    with pytest.raises(SystemExit) as left:
        main(["chat", "DIR", *options])
    assert isinstance(left.value.code, int)
    return left.value.code


def test_lines_are_answered_one_by_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--weights", "int8", "--dtype", "fp32", "--temperature", "0", "--seed", "3", "--system", "be brief"]
    assert run(monkeypatch, "hello\n\nand\r\n", *options) == 0
    said = capsys.readouterr()
    assert said.out == "Well, yes.\nWell, yes.\n"
    assert said.err.splitlines()[-1] == "2 answers · 8 tokens · 3.00 tokens/s · first token after 500 ms"
    [engine] = FakeEngine.made
    assert (engine.model, engine.tokenizer.directory) == (Path("DIR"), Path("DIR"))
    assert engine.options == EngineOptions(weights="int8", dtype="fp32")
    first, second = engine.asked
    assert first[0] == "system: be brief|user: hello"
    assert second[0] == "system: be brief|user: hello|assistant: Well, yes.|user: and"
    assert (first[1].temperature, first[1].seed, first[1].max_tokens) == (0, 3, 200 - len(first[0]))


def test_completing_knows_no_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "  once \nagain\n", "--complete", "--max-tokens", "7") == 0
    asked = FakeEngine.made[0].asked
    assert [text for text, _ in asked] == ["\0  once ", "\0again"]
    assert asked[0][1].max_tokens == 7


def test_answers_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, f"hello\n{'x' * 300}\nagain\n", "--json") == 2
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "prompt": "hello", "text": "Well, yes.", "finish_reason": "stop", "error": None, "num_prompt_tokens": 11,
        "num_cached_tokens": 1, "num_tokens": 4, "ttft_s": 0.5, "e2e_s": 1.5, "tokens_per_s": 3.0,
    }  # fmt: skip
    assert (second["finish_reason"], second["text"]) == ("error", "")
    assert "the model takes 200" in second["error"]
    assert third["prompt"] == "again"
    assert "x" not in FakeEngine.made[0].asked[1][0]  # what failed is no part of the conversation


def test_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "hello\n/reset\n/stats\n/quite\nhow\n/quit\nnever\n", typed=True) == 0
    said = capsys.readouterr().err
    assert "prefix hits 75% · drafts accepted —" in said
    assert "prompt 11 tokens, 1 of them cached" in said
    assert "there is no /quite; /help lists" in said
    assert [text for text, _ in FakeEngine.made[0].asked] == ["user: hello", "user: how"]


@pytest.mark.parametrize("where", ["in the engine", "between its pieces"])
def test_ctrl_c_stops_the_answer_and_not_the_talk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    if where == "in the engine":
        monkeypatch.setattr(FakeEngine, "pieces", ("Well, ", lambda: signal.raise_signal(signal.SIGINT), "never"))
    else:
        monkeypatch.setattr("whet.cli.chat._show", lambda text: signal.raise_signal(signal.SIGINT))
    assert run(monkeypatch, "hello\nhow\n", typed=True) == 0
    asked = FakeEngine.made[0].asked
    assert asked[1][0] == "user: hello|assistant: Well, |user: how"
    assert "2 answers" in capsys.readouterr().err


def test_a_second_ctrl_c_leaves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a row; what is typed in between begins anew."""

    def typed(*lines: str | None) -> int:
        left = list(lines)

        def read(_: object) -> str:
            if (line := left.pop(0)) is None:
                raise KeyboardInterrupt
            return line

        monkeypatch.setattr("builtins.input", read)
        return run(monkeypatch, "", typed=True)

    assert typed(None, "hello", None, None, "never") == 130
    assert capsys.readouterr().err.count("Ctrl-C again leaves") == 2
    monkeypatch.setattr(FakeEngine, "pieces", ("Well, ", lambda: signal.raise_signal(signal.SIGINT)))
    assert typed("hello", None, "never") == 130
    assert "stopped; Ctrl-C again leaves" in capsys.readouterr().err
    assert [text for text, _ in FakeEngine.made[1].asked] == ["user: hello"]


def test_ctrl_c_ends_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FakeEngine, "pieces", ("Well, ", lambda: signal.raise_signal(signal.SIGINT)))
    assert run(monkeypatch, "hello\nhow\n", "--json") == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["finish_reason"] == "abort"
    assert "1 answer · 2 tokens" in said.err


def test_what_the_engine_refuses_is_said_and_the_talk_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RequestError("no block is left")

    monkeypatch.setattr(FakeEngine, "pieces", (refuse,))
    assert run(monkeypatch, "hello\nhow\n", typed=True) == 0
    assert capsys.readouterr().err.count("error: no block is left") == 2
    assert FakeEngine.made[0].asked[1][0] == "user: how"


def test_nobody_reads_on() -> None:
    """As in `whet chat DIR < FILE | head -1`, with a model that comes with whet."""
    command = [sys.executable, "-m", "whet", "chat", "docs-gpt", "--max-tokens", "5"]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, input="a\nb\n", stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert ended.returncode == 141
    assert "Error" not in ended.stderr, ended.stderr


def test_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "") == 0
    monkeypatch.setattr("sys.stdin", None)  # as Python says of one that is closed
    with pytest.raises(SystemExit) as left:
        main(["chat", "DIR"])
    assert left.value.code == 0
    assert capsys.readouterr().err.count("no answer") == 2


def test_a_plain_template_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FakeTokenizer, "chat_template", SimpleNamespace(is_plain=True))
    assert run(monkeypatch, "") == 0
    assert "no chat template" in capsys.readouterr().err
    assert run(monkeypatch, "", "--complete") == 0
    assert "no chat template" not in capsys.readouterr().err


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Typed()
    monkeypatch.setattr(FakeEngine, "pieces", ("a\x1b[2Jb\t\x9bc\n",))
    monkeypatch.setattr("sys.stdout", terminal)
    run(monkeypatch, "hello\n")
    assert terminal.getvalue() == "a\ufffd[2Jb\t\ufffdc\n\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "-1"], "temperature=-1"),
        (["--system", "x", "--complete"], "--system needs a chat template"),
        ([], "DIR is no directory"),
    ],
)
def test_wrong_use_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    if not options:
        Path("DIR").rmdir()
    assert run(monkeypatch, "", *options) == 2
    assert said in capsys.readouterr().err
    assert FakeEngine.made == []
