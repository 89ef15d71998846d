"""Requests that schemathesis makes up from the OpenAPI page: no answer is a 5xx, and each is as documented."""

from collections.abc import Iterator
from typing import Any

import pytest
from asking import serving
from fake_engine import FakeEngine
from functions_served import DOUBLED, artefact_of, doubled
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny_encoders import tuned, write_embedder

from whet.core.artefact import load
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.artefacts.text_encoder import text_encoder
from whet.server.http.models import Models
from whet.server.http.request_parsing import KINDS

schemathesis = pytest.importorskip("schemathesis")

ENGINE = FakeEngine()
WITH_BODY = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
OF_ENCODERS = ["/v1/embeddings", "/v1/rerank", "/rerank"]
OF_ARTEFACTS = ["/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"]
WITHOUT = [
    *("/v1/models", "/v1/models/{name}", "/health", "/version", "/metrics", "/live"),
    *("/v2", "/v2/health/live", "/v2/health/ready"),
    *(f"/v2/models/{{name}}{version}{what}" for version in ("", "/versions/{version}") for what in ("", "/ready")),
]
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    ENGINE.max_model_len = 40
    made = tuned(write_embedder(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("tuned") / "model")
    doubles, encoder = ServedArtefact("doubled", artefact_of(doubled, *DOUBLED)), ServedArtefact("encoder", load(made))
    artefacts, encoders = {"doubled": doubles, "encoder": encoder}, {"encoder": text_encoder(encoder, made)}
    with serving(Models({("fake",): ENGINE}, artefacts, encoders)) as server:  # type: ignore[arg-type, dict-item]
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    doubles.close()
    encoder.close()


def test_every_path_is_known(schema: Any) -> None:
    assert sorted(schema) == sorted(WITH_BODY + OF_ENCODERS + OF_ARTEFACTS + WITHOUT)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("CompletionRequest", {}),
    ("CompletionRequest", {"prompt": 5}),
    ("CompletionRequest", {"prompt": [1, -5]}),
    ("CompletionRequest", {"prompt": "a", "n": 129}),
    ("CompletionRequest", {"prompt": "a", "n": 0}),
    ("CompletionRequest", {"prompt": "a", "temperature": 101}),
    ("CompletionRequest", {"prompt": "a", "repetition_penalty": 5e-324}),
    ("CompletionRequest", {"prompt": "a", "logprobs": 21}),
    ("CompletionRequest", {"prompt": "a", "suffix": "b"}),
    ("CompletionRequest", {"prompt": "a", "stop": ""}),
    ("CompletionRequest", {"prompt": "a", "stop": "a" * 4097}),
    ("CompletionRequest", {"prompt": "a", "stop": ["a"] * 65}),
    ("CompletionRequest", {"prompt": "a", "seed": 2**64}),
    ("CompletionRequest", {"prompt": "a", "logit_bias": {"x": 1}}),
    ("CompletionRequest", {"prompt": "a", "logit_bias": {"1": 101}}),
    ("CompletionRequest", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(1025)}}),
    ("CompletionRequest", {"prompt": "a", "stream_options": {"continuous_usage_stats": True}, "stream": True}),
    ("CompletionRequest", {"prompt": "a", "guided_json": []}),
    ("CompletionRequest", {"prompt": "a", "structural_tag": {}}),
    ("CompletionRequest", {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": 5}}),
    ("CompletionRequest", {"prompt": "a", "include_stop_str_in_output": True}),
    ("ChatRequest", {"messages": []}),
    ("ChatRequest", {"messages": [{"content": "a"}]}),
    ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("ChatRequest", {"messages": [{"role": "user"}], "response_format": {"type": "xml"}}),
    ("ChatRequest", {"messages": [{"role": "user"}], "chat_template_kwargs": {"self": 1}}),
    ("ChatRequest", {"messages": [{"role": "user"}], "continue_final_message": True}),
    ("ChatRequest", {"messages": [{"role": "user"}], "structured_outputs": {"json": 5}}),
    ("TokenizeRequest", {"prompt": "a", "chat_template": "b"}),
    ("DetokenizeRequest", {"tokens": [-1]}),
    ("DetokenizeRequest", {}),
]
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("CompletionRequest", {"prompt": [[1, 2], [3]], "n": 2, "stop": ["a"], "logit_bias": {"5": -3}, "unknown": 1}),
    ("CompletionRequest", {"prompt": "a", "skip_special_tokens": True, "guided_json": None, "bad_words": []}),
    ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "b"}]}),
    ("ChatRequest", {"messages": [{"role": "user"}], "response_format": {"type": "text"}, "user": "me"}),
    ("ChatRequest", {"messages": [{"role": "user"}], "response_format": {"type": "json_object"}}),
    ("ChatRequest", {"messages": [{"role": "user"}], "structured_outputs": {"choice": ["a"]}}),
    ("TokenizeRequest", {"messages": [{"role": "user"}], "chat_template_kwargs": {"thinking": True}}),
]


@pytest.mark.parametrize(("kind", "body"), REFUSED + TAKEN)
def test_the_schema_says_what_is_checked(schema: Any, kind: str, body: dict[str, Any]) -> None:
    """A body fits the schema if, and only if, the server takes it."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    parts = schema.raw_schema["components"]["schemas"]
    whole = {"$ref": f"#/components/schemas/{kind}", "components": {"schemas": parts}}
    fits = jsonschema.validator_for(whole).is_valid(body)
    try:
        KINDS[kind].model_validate(body)
        is_taken = True
    except ValidationError:
        is_taken = False
    assert (fits, is_taken) == ((kind, body) in TAKEN,) * 2


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("path", WITH_BODY)
def test_any_body(schema: Any, path: str, mode: str) -> None:
    statuses = check(schema, path, mode, num_examples=20)
    assert 400 in statuses
    assert (200 in statuses) == (mode == "POSITIVE")
    ENGINE.wait_idle()


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("path", OF_ENCODERS)
def test_any_text(schema: Any, path: str, mode: str) -> None:
    fields: dict[str, object] = {"model": "encoder", "truncate_prompt_tokens": -1} if mode == "POSITIVE" else {}
    if mode == "POSITIVE" and path != "/v1/embeddings":
        fields |= {"texts": None, "documents": ["a cat", {"text": "a dog"}]}
    assert (200 in check(schema, path, mode, num_examples=20, **fields)) == (mode == "POSITIVE")


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("path", OF_ARTEFACTS)
def test_any_inference(schema: Any, path: str, mode: str) -> None:
    """What is made up has neither the model's name nor its inputs: some requests are given those."""
    assert check(schema, path, mode, num_examples=20) <= {400, 404, 405}
    inputs = [{"name": "input_0", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]
    parameters = {"name": "doubled", "version": "1"}
    fields: dict[str, Any] = {"inputs": inputs, "outputs": None, "parameters": None}
    statuses = check(schema, path, "POSITIVE", num_examples=10, path_parameters=parameters, **fields)
    assert statuses == {200}


@pytest.mark.parametrize("path", WITH_BODY[:2])
def test_streams(schema: Any, path: str) -> None:
    assert 200 in check(schema, path, "POSITIVE", num_examples=10, stream=True)
    ENGINE.wait_running(0)


@pytest.mark.parametrize("path", WITHOUT)
def test_any_request_without_one(schema: Any, path: str) -> None:
    assert check(schema, path, "POSITIVE", num_examples=5) <= {200, 404}


def check(
    schema: Any,
    path: str,
    mode: str,
    *,
    num_examples: int,
    path_parameters: dict[str, str] | None = None,
    **fields: object,
) -> set[int]:
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
        if path_parameters is not None:
            case.path_parameters |= {key: value for key, value in path_parameters.items() if f"{{{key}}}" in path}
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    ask()
    return statuses
