"""Requests that schemathesis makes up from the OpenAPI page: no answer is a 5xx, and each is as documented."""

from collections.abc import Iterator
from typing import Any

import pytest
from asking import serving
from fake_engine import FakeEngine
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis")

ENGINE = FakeEngine()
WITH_BODY = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
WITHOUT = ["/v1/models", "/v1/models/{name}", "/health", "/version", "/metrics", "/live"]
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    ENGINE.max_model_len = 40
    with serving(ENGINE) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_path_is_known(schema: Any) -> None:
    assert sorted(schema) == sorted(WITH_BODY + WITHOUT)


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("path", WITH_BODY)
def test_any_body(schema: Any, path: str, mode: str) -> None:
    statuses = check(schema, path, mode, num_examples=20)
    assert 400 in statuses
    assert (200 in statuses) == (mode == "POSITIVE")
    ENGINE.wait_running(0)
    assert ENGINE.num_reserved == 0


@pytest.mark.parametrize("path", WITH_BODY[:2])
def test_streams(schema: Any, path: str) -> None:
    assert 200 in check(schema, path, "POSITIVE", num_examples=10, stream=True)
    ENGINE.wait_running(0)


@pytest.mark.parametrize("path", WITHOUT)
def test_any_request_without_one(schema: Any, path: str) -> None:
    assert check(schema, path, "POSITIVE", num_examples=5) <= {200, 404}


def check(schema: Any, path: str, mode: str, *, num_examples: int, **fields: object) -> set[int]:
    """The statuses there were. fields: what all bodies have."""
    [(_, operation)] = schema[path].items()
    cases = operation.as_strategy(generation_mode=getattr(schemathesis.GenerationMode, mode))

    statuses = set()

    @given(st.data())
    @settings(max_examples=num_examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def ask(data: st.DataObject) -> None:
        case = data.draw(cases)
        if mode == "POSITIVE" and isinstance(case.body, dict):
            case.body |= {"model": "fake", **fields}  # another model is refused, whatever else there is
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    ask()
    return statuses
