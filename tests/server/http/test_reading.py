"""Test what is said of bodies that are nested deeply, and of errors in the process that reads large bodies."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from asking import ask, serving
from fake_engine import FakeEngine
from pydantic_core import PydanticCustomError

from whet.server.http.errors import ApiError
from whet.server.http.protocol import CompletionRequest
from whet.server.http.request_parsing import MAX_LEVELS, SMALL, parse_body
from whet.server.http.request_parsing_process import _answered
from whet.server.http.run import HttpServer

JSON = "application/json"


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(FakeEngine()) as server:
        yield server


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"items": value}
    return value


def readers() -> set[int]:
    """Return the processes that read large bodies."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if "whet.server.http.request_parsing_process" in child.cmdline()}


@pytest.mark.parametrize("size", [0, 2 * SMALL])
def test_a_schema_that_is_nested_too_deeply(server: HttpServer, caplog: pytest.LogCaptureFixture, size: int) -> None:
    body = {"prompt": "a", "max_tokens": 1, "user": "x" * size}
    assert ask(server, "/v1/completions", body).status == 200
    before = readers()
    assert bool(before) == bool(size)
    deep = (
        json.dumps({**body, "guided_json": "?"}).encode().replace(b'"?"', b'{"enum": ' + b"[" * 960 + b"]" * 960 + b"}")
    )
    answer = ask(server, "/v1/completions", deep)
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")
    assert f"nested more than {MAX_LEVELS} levels deep" in answer.error["message"]
    assert ask(server, "/v1/completions", body).status == 200
    assert readers() == before
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("depth", [MAX_LEVELS, 900, 100_000])
def test_bodies_that_are_nested_too_deeply(depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        content = b'{"prompt": "a", "more": ' + opening * depth + b"0" + closing * depth + b"}"
        with pytest.raises(ApiError, match="levels deep: nest them less"):
            parse_body(CompletionRequest, content, JSON)


def test_bodies_that_are_not_nested_too_deeply() -> None:
    for more in (nested(MAX_LEVELS - 1), [[]] * 5_000, {"a": [{}] * 5_000}):
        content = json.dumps({"prompt": "[{" * 5_000, "more": more}).encode()
        assert parse_body(CompletionRequest, content, JSON).prompt == "[{" * 5_000


def test_what_a_validator_refuses_late_is_an_answer() -> None:
    class Answers:
        def of(self, head: Any, content: bytes) -> Any:
            if not content:
                raise PydanticCustomError("guided_json", "it is no schema")
            CompletionRequest.model_validate_json(content)

    assert _answered(Answers(), {}, b"")[0]["error"] == {  # type: ignore[arg-type]
        "status": 400,
        "message": "it is no schema",
        "param": "guided_json",
        "code": None,
    }
    error = _answered(Answers(), {}, b'{"prompt": 5}')[0]["error"]  # type: ignore[arg-type]
    assert (error["status"], error["param"]) == (400, "prompt")
