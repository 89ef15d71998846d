"""States of models with long-term memory by name: made, shown, gone on from, deleted, and kept apart."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Answer, ask, serving
from fake_engine import TOKENIZER, FakeEngine
from families_served import _ltm

from whet.errors import OptionError
from whet.models.memory_bank.rows import RowsOfLtmStates
from whet.models.memory_bank.state import LtmState
from whet.server.engine import Engine
from whet.server.http import states
from whet.server.http.app import make_app
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.request_parsing import SMALL
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions

KEYS = ("first", "second")
TEXT, REST = [5, 7, 9, 11] * 8, [6, 8, 7]


def small() -> Any:
    return _ltm(vocab_size=TOKENIZER.vocab_size, num_hidden_layers=1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    options = EngineOptions(max_num_seqs=4, memory=10**7, max_model_len=200, speculation="off")
    with Engine(RowsOfLtmStates(small()), options, tokenizer=TOKENIZER) as engine:  # type: ignore[arg-type]
        yield engine


@pytest.fixture
def server(engine: Engine, tmp_path: Path) -> Iterator[HttpServer]:
    with serving(engine, state_dir=str(tmp_path / "states")) as server:  # type: ignore[arg-type]
        yield server


def made(server: HttpServer, name: str = "one", **fields: Any) -> Answer:
    return ask(server, f"/v1/states/{name}", {"prompt": TEXT, **fields})


def completion(server: HttpServer, prompt: list[int], **fields: Any) -> Answer:
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields}
    return ask(server, "/v1/completions", body)


def test_a_completion_goes_on_from_a_state(server: HttpServer, tmp_path: Path) -> None:
    answer = made(server)
    assert answer.status == 200, answer.json
    assert (answer.json["num_tokens"], answer.json["model"], answer.json["memory"]["slots"]) == (32, "fake", 4)
    assert ask(server, "/v1/states/one").json == answer.json
    whole = completion(server, TEXT + REST).json
    for fields in ({}, {"n": 2}):
        found = completion(server, REST, state="one", **fields).json
        assert {choice["text"] for choice in found["choices"]} == {whole["choices"][0]["text"]}
        assert found["usage"]["prompt_tokens"] == 35
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    assert made(server, "two", prompt=REST[:1], state="one").json["num_tokens"] == 33
    assert completion(server, REST[1:], state="two").json["choices"] == whole["choices"]
    listed = ask(server, "/v1/states").json["data"]
    assert [one["id"] for one in listed] == ["one", "two"]
    assert LtmState.load(tmp_path / "states" / "one.safetensors").num_tokens == 32
    assert ask(server, "/v1/states/one", method="DELETE").json == {"id": "one", "object": "state", "deleted": True}
    assert ask(server, "/v1/states/one").status == 404
    assert completion(server, REST, state="one").status == 404


def test_a_large_body_goes_on_too(server: HttpServer) -> None:
    """It is read in the process for large bodies."""
    made(server)
    body = json.dumps({"prompt": REST, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "state": "one"}).encode()
    large = ask(server, "/v1/completions", body + b" " * SMALL).json
    assert large["choices"] == completion(server, REST, state="one").json["choices"]
    assert large["usage"]["prompt_tokens"] == 35


def test_a_text_that_goes_on_gets_no_special_tokens(server: HttpServer) -> None:
    made(server)
    ids = TOKENIZER.encode(" and then", False)
    usage = completion(server, " and then", state="one").json["usage"]  # type: ignore[arg-type]
    assert usage["prompt_tokens"] == 32 + len(ids)
    assert completion(server, [], state="one").status == 400


@pytest.mark.parametrize("name", [".hidden", "..", "a%2Fb", "%2E%2E%2Fa", "a b", "x" * 129, "%00"])
def test_names_lead_nowhere_else(server: HttpServer, tmp_path: Path, name: str) -> None:
    for method in ("POST", "GET", "DELETE"):
        answer = ask(server, f"/v1/states/{name.replace(' ', '%20')}", {"prompt": TEXT}, method=method)
        assert answer.status in (400, 404, 405), (method, answer.json)
    assert completion(server, REST, state=name).status in (400, 404)
    assert [path.name for path in tmp_path.iterdir()] == ["states"]
    assert list((tmp_path / "states").iterdir()) == []


def test_what_is_refused(server: HttpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(server).status == 200
    assert (made(server).status, made(server).error["code"]) == (409, "state_exists")
    assert made(server, "two", prompt=[TEXT, TEXT]).status == 400
    assert made(server, "two", stream=True).status == 400
    assert made(server, "two", n=2).status == 400
    assert made(server, "two", model="other").status == 404
    assert made(server, "two", state="none").status == 404
    assert made(server, "two", prompt=TEXT * 7).error["code"] == "context_length_exceeded"
    assert completion(server, REST * 60, state="one").error["code"] == "context_length_exceeded"
    assert completion(server, REST, state="one", echo=True, logprobs=1).status == 400
    assert completion(server, REST, state=7).status == 400
    chat = ask(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "state": "one"})
    assert (chat.status, chat.error["param"]) == (400, "state")
    kept = tmp_path / "states"
    (kept / "damaged.safetensors").write_bytes(b"?")
    other = small()
    with torch.no_grad():
        other.norm.weight.mul_(2)
    state = other.new_state()
    other.step(torch.tensor([TEXT]), state)
    state.save(kept / "foreign.safetensors")
    for name in ("damaged", "foreign"):
        answer = completion(server, REST, state=name)
        assert (answer.status, answer.error["code"]) == (400, "unusable_state")
        assert name in answer.error["message"]
        assert str(tmp_path) not in answer.error["message"]
    assert ask(server, "/v1/states/damaged").status == 400
    assert ask(server, "/v1/states/foreign").json["model"] is None
    monkeypatch.setattr(states, "MOST_STATES", 3)
    assert (made(server, "two").status, made(server, "two").error["code"]) == (413, "too_many_states")


def test_keys_keep_states_apart(engine: Engine, tmp_path: Path) -> None:
    with serving(engine, state_dir=str(tmp_path), api_keys=KEYS) as server:  # type: ignore[arg-type]
        first, second = ({"Authorization": f"Bearer {key}"} for key in KEYS)
        assert made(server).status == 401
        assert ask(server, "/v1/states/one", {"prompt": TEXT}, headers=first).status == 200
        assert ask(server, "/v1/states/one", headers=second).status == 404
        assert ask(server, "/v1/states", headers=second).json["data"] == []
        assert [one["id"] for one in ask(server, "/v1/states", headers=first).json["data"]] == ["one"]
        assert not any(key in str(path) for key in KEYS for path in tmp_path.rglob("*"))


def test_without_the_option_there_are_none(engine: Engine) -> None:
    with serving(engine) as server:  # type: ignore[arg-type]
        assert made(server).status == 404
        assert "--state-dir" in completion(server, REST, state="one").error["message"]


def test_a_server_without_such_a_model_or_directory_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"--state-dir: cannot make the directory .*file"):
        Settings(served_names=("fake",), state_dir=str(tmp_path / "file"))
    settings = Settings(served_names=("fake",), state_dir=str(tmp_path / "states"))
    with pytest.raises(OptionError, match="only models with long-term memory"):
        make_app(FakeEngine(), settings, Lifecycle())  # type: ignore[arg-type]
