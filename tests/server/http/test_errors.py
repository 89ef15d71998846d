"""Whatever is wrong with a request, the answer is a 4xx in OpenAI's shape, and the engine hears nothing of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from asking import ask, serving
from fake_engine import FakeEngine

from whet.server.http import unsupported
from whet.server.http.documented import Failed
from whet.server.http.protocol import ChatRequest, CompletionRequest, TokenizeRequest
from whet.server.http.run import HttpServer

ENGINE = FakeEngine()
CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE) as server:
        yield server


@pytest.fixture(autouse=True)
def engine() -> FakeEngine:
    ENGINE.reset()
    return ENGINE


def refused(server: HttpServer, path: str, body: object, status: int = 400) -> dict[str, Any]:
    """The error of an answer that must be one, and leave nothing behind."""
    answer = ask(server, path, body)
    assert answer.status == status, answer.content
    Failed.model_validate(answer.json)
    assert (ENGINE.asked, ENGINE.num_reserved) == ([], 0)
    return answer.error


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (["a"] * 65, "stop: List should have at most 64 items"),
        (["a", "b" * 5_000], "stop.1: String should have at most 4096 characters"),
        (["a", 5], "stop.1: Input should be a valid string"),
        (5, "stop: Input should be a valid"),
    ],
)
def test_an_error_names_no_type_of_the_library(server: HttpServer, stop: object, message: str) -> None:
    error = refused(server, "/v1/completions", {"prompt": "a", "stop": stop})
    assert error["message"].startswith(message)
    assert error["param"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": None}, "prompt", "a prompt is text, a list of texts"),
        ({"prompt": 5}, "prompt", "a prompt is text, a list of texts"),
        ({"prompt": ["a", 5]}, "prompt", "a prompt is text, a list of texts"),
        ({"prompt": [1, -5]}, "prompt", "a prompt is text, a list of texts"),
        ({"prompt": [1, 2.5]}, "prompt", "a prompt is text, a list of texts"),
        ({"prompt": {"a": "b"}}, "prompt", "a prompt is text, a list of texts"),
        ({"prompt": []}, "prompt", "no prompt in the list"),
        ({"prompt": [1, 2048]}, "prompt", "the model has no token 2048: give tokens from 0 to 2047"),
        ({"prompt": [[1], [10**9]]}, "prompt", "tokens from 0 to 2047"),
        ({"prompt": [1] * 512}, "prompt", "the model takes 512 tokens"),
        ({"prompt": "word " * 600}, "prompt", "the model takes 512 tokens"),
        ({"max_tokens": 600}, "prompt", "and 600 to be generated"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"max_tokens": 10**40}, "max_tokens", "less than or equal"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 10**9}, "n", "less than or equal to 128"),
        ({"n": True}, "n", "valid integer"),
        ({"prompt": ["a"] * 4, "n": 100}, "n", "400 choices in one request"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"min_p": -1}, "min_p", "greater than or equal to 0"),
        ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"repetition_penalty": 1e-39}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"stop": "a" * 5000}, "stop", "at most 4096 characters"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"logprobs": True}, "logprobs", "valid integer"),
        ({"logit_bias": {"x": 1}}, "logit_bias", 'token ids, as text: {"50256": -100}'),
        ({"logit_bias": {"1": 101}}, "logit_bias", "less than or equal to 100"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "logit_bias: a token=9999"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": ["a"] * 65}, "stop", ""),
        ({"stop": 5}, "stop", "valid string"),
        ({"stop_token_ids": [4000]}, "stop_token_ids", "stop_token_ids"),
        ({"seed": 2**64}, "seed", "less than"),
        ({"seed": 1.5}, "seed", "valid integer"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for stream: true"),
        ({"max_tokens": 3, "min_tokens": 5}, "min_tokens", "min_tokens=5 is above max_tokens=3"),
        ({"best_of": 3}, "best_of", "best_of"),
        ({"suffix": "end"}, "suffix", "suffix"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "use max_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format", "'json_schema'"),
        ({"cache_salt": ""}, "cache_salt", "at least 1 character"),
        ({"prompt": "a\ud800"}, None, "not valid Unicode at character 1"),
        ({"cache_salt": "\ud800"}, "cache_salt", "valid string"),
        ({"stop": "\ud800"}, "stop", "valid string"),
        ({"logit_bias": {"\ud800": 1}}, "logit_bias", ""),
    ],
)
def test_fields_of_a_completion(server: HttpServer, fields: dict[str, Any], param: str | None, message: str) -> None:
    error = refused(server, "/v1/completions", {"model": "fake", "prompt": "Once", **fields})
    assert error["type"] == "invalid_request_error"
    assert (error["param"], message in error["message"]) == (param, True), error


F = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": None}, "messages", "valid list"),
        ({"messages": "Hi"}, "messages", "valid list"),
        ({"messages": [{"content": "Hi"}]}, "messages", "messages.0.role: Field required"),
        ({"messages": [{"role": 5, "content": "Hi"}]}, "messages", "valid string"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
            'this server reads text only: {"type": "text", "text": ...}',
        ),
        ({"messages": [{"role": "user", "content": "word " * 700}]}, "prompt", "the model takes 512 tokens"),
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, None, "not valid Unicode"),
        ({"max_completion_tokens": -2}, "max_completion_tokens", "greater than or equal to 0"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
        ({"logprobs": 2}, "logprobs", "valid boolean"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "'text'"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "needs the schema"),
        ({"tool_choice": "required"}, "tool_choice", 'tool_choice "required" needs tools'),
        ({"tool_choice": "any"}, "tool_choice", "'required'"),
        ({"functions": [{"name": "f"}]}, "functions", "does not support it"),
        ({"modalities": ["text", "audio"]}, "modalities", "does not support it"),
        ({"echo": True}, "echo", "does not support it"),
        ({"continue_final_message": True}, "continue_final_message", "does not support it"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "does not support it"),
        ({"tools": [{"type": "function"}]}, "tools", "tools.0.function: Field required"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "pattern"),
        ({"tools": [F, F]}, "tools", "two functions are called f"),
        ({"tools": [F], "tool_choice": NAMED}, "tool_choice", "there is no function g among the tools"),
        ({"tools": [F]}, "tools", "start the server with --tool-call-parser: hermes"),
        ({"tools": [F], "guided_regex": "a"}, "tools", "tools and guided_regex both say what the answer is"),
        ({"chat_template_kwargs": {"bos_token": "\ud800"}}, None, "not valid Unicode"),
    ],
)
def test_fields_of_a_chat(server: HttpServer, fields: dict[str, Any], param: str | None, message: str) -> None:
    error = refused(server, "/v1/chat/completions", {"model": "fake", "messages": CHAT, **fields})
    assert (error["param"], message in error["message"]) == (param, True), error


ASKED = {
    "structural_tag": "{}",
    "grammar_lazy": True,
    "bad_words": ["a"],
    "include_stop_str_in_output": True,
    "prompt_logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "use_beam_search": True,
    "length_penalty": 0.5,
    "allowed_token_ids": [1],
    "truncate_prompt_tokens": 5,
    "logits_processors": ["a.b"],
    "repeat_penalty": 1.2,
    "n_predict": 5,
    "mirostat": 2,
    "typical_p": 0.5,
    "priority": True,
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_other_servers_do_and_this_one_does_not(server: HttpServer, path: str) -> None:
    """A 200 with text that does not follow the grammar would be worse than a refusal."""
    body = {"prompt": "Once"} if path == "/v1/completions" else {"messages": CHAT}
    for name, value in ASKED.items():
        error = refused(server, path, {**body, name: value})
        assert (error["param"], error["type"]) == (name, "invalid_request_error")
        assert f"{name}: this server does not support it" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_values_that_ask_for_nothing(server: HttpServer, path: str) -> None:
    """Clients that send every parameter with its default are served."""
    is_chat = path == "/v1/chat/completions"
    body: dict[str, Any] = {"messages": CHAT} if is_chat else {"prompt": "Once"}
    refusable = unsupported.CHAT if is_chat else unsupported.COMPLETION
    body |= dict.fromkeys(refusable) | dict.fromkeys(unsupported.IGNORED)
    assert ask(server, path, {**body, "max_tokens": 2}).status == 200
    for name, neutral in refusable.items():
        for value in neutral:
            assert ask(server, path, {**body, "max_tokens": 2, name: value}).status == 200, (name, value)
    known = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "no_such_field": [1]}
    assert ask(server, path, {**body, "max_tokens": 2, **known}).status == 200


def test_no_parameter_is_both_followed_and_refused() -> None:
    for request in (CompletionRequest, ChatRequest, TokenizeRequest):
        fields = set(request.model_fields)
        assert not fields & (set(request.refused) | unsupported.IGNORED)
        assert not set(request.refused) & unsupported.IGNORED


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_names_that_a_template_has_already(server: HttpServer, path: str) -> None:
    for name in ("self", "messages", "add_generation_prompt", "tools", "tokenize", "chat_template"):
        error = refused(server, path, {"messages": CHAT, "chat_template_kwargs": {name: 1}})
        assert (error["param"], name in error["message"]) == ("chat_template_kwargs", True)
    for name in ("loop", "range", "args", "kwargs", "context", "", "a b", "__class__", "raise_exception", "variables"):
        body = {"messages": CHAT, "chat_template_kwargs": {name: 1}, "max_tokens": 2}
        assert ask(server, path, body).status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "a",}',
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe{",
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "temperature": NaN, "tokens": [1e999]}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_bodies_that_are_no_request(server: HttpServer, path: str, body: bytes) -> None:
    error = refused(server, path, body)
    assert (error["type"], bool(error["message"])) == ("invalid_request_error", True), error


def test_where_json_ends(server: HttpServer) -> None:
    error = refused(server, "/v1/completions", b'{"prompt": "a",}')
    assert (error["code"], "character 1" in error["message"]) == ("invalid_json", True), error


def test_json_must_be_called_json(server: HttpServer) -> None:
    """A page of another site may send a form or text here without asking the browser first; JSON it may not."""
    body = json.dumps({"prompt": "Once"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = ask(server, "/v1/completions", body, headers={"Content-Type": kind})
        assert (answer.status, "Content-Type: application/json" in answer.error["message"]) == (400, True)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_another_model(server: HttpServer, path: str) -> None:
    body = {"model": "gpt-4", "prompt": "a", "tokens": [1]} | ({"messages": CHAT} if "chat" in path else {})
    error = refused(server, path, body, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "there is no model 'gpt-4' here; use one of: fake" in error["message"]


def test_paths_and_methods_that_are_not_there(server: HttpServer) -> None:
    answer = ask(server, "/v1/edits", {})
    assert (answer.status, answer.error["message"]) == (
        404,
        "there is no path /v1/edits; GET /openapi.json lists all paths",
    )
    answer = ask(server, "/v1/completions")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert (
        answer.error["message"] == "/v1/completions does not take GET; GET /openapi.json lists the methods of each path"
    )
    assert ask(server, "/v1/models/other").status == 404
    assert ask(server, "/docs").status == 404


def test_a_foreign_name_for_this_address(server: HttpServer) -> None:
    """A site can point a name of its own at 127.0.0.1 and have its visitors' browsers ask here."""
    answer = ask(server, "/v1/models", headers={"Host": "evil.example"})
    assert (answer.status, answer.error["code"]) == (421, "wrong_host")
    for host in ("localhost:80", "127.0.0.1", "[::1]:9"):
        assert ask(server, "/v1/models", headers={"Host": host}).status == 200


def test_a_mistake_in_the_server_is_a_500_and_said_in_the_log(
    server: HttpServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "submit", None)
    answer = ask(server, "/v1/completions", {"prompt": "Once"})
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert "NoneType" not in answer.error["message"]
    assert "POST /v1/completions failed" in caplog.text
    assert engine.num_reserved == 0
    assert answer.headers["connection"] == "close"  # as it is: the framework raises the error on
