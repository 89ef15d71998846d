"""`whet.chat` and `whet chat`: the same answers of a model that comes with whet."""

import io
import json
from dataclasses import asdict

import pytest

from whet.cli import main
from whet.errors import OptionError, RequestError, TargetError
from whet.server.conversation import chat


def test_the_command_and_the_function_answer_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["The torch.nn module", "And then?"]
    with chat("docs-gpt", temperature=0.0, max_tokens=8) as talk:
        pieces: list[str] = []
        answers = [talk.answer(text, pieces.append) for text in asked]
    assert "".join(pieces) == "".join(answer.text for answer in answers)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(asked)))
    with pytest.raises(SystemExit) as left:
        main(["chat", "docs-gpt", "--temperature", "0", "--max-tokens", "8", "--json"])
    assert left.value.code == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    timeless = {"prompt", "text", "finish_reason", "error", "num_prompt_tokens", "num_cached_tokens", "num_tokens"}
    for answer, line in zip(answers, shown, strict=True):
        assert {key: asdict(answer)[key] for key in timeless} == {key: line[key] for key in timeless}
    assert answers[0].num_tokens == 8


def test_a_conversation_is_forgotten_and_goes_on_after_an_error() -> None:
    with chat("docs-gpt", temperature=0.0, max_tokens=4) as talk:
        first = talk.answer("The torch.nn module")
        with pytest.raises(RequestError, match="/reset begins a new one"):
            talk.answer("word " * 2000)
        assert [message["role"] for message in talk.messages] == ["user", "assistant"]
        talk.reset()
        assert talk.answer("The torch.nn module").text == first.text


def test_what_is_wrong_is_raised_before_a_model_is_loaded() -> None:
    with pytest.raises(OptionError, match="--system"):
        chat("docs-gpt", complete=True, system="be brief")
    with pytest.raises(RequestError, match="temperature=-1"):
        chat("docs-gpt", temperature=-1)
    with pytest.raises(TargetError, match="no-such-model"):
        chat("no-such-model")
