"""Describe the answers for /openapi.json. Other modules write the JSON; tests check that both agree.

The docstrings of these classes are published as descriptions of the schemas.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel
from pydantic.json_schema import models_json_schema


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class CachedTokens(_Answer):
    """Count the tokens of the prompts that were found in the prefix cache."""

    cached_tokens: int


class Usage(_Answer):
    """Count the tokens of the prompts and the generated tokens. A prompt with several choices counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Logprobs(_Answer):
    """Hold four lists with one entry for each token. The first token of a prompt has no probability: its entry is null.

    `text_offset` counts characters from the beginning of the prompt.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Answer):
    """Hold one generated text, and why it ended."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None


class Completion(_Answer):
    """This is the answer to POST /v1/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(_Answer):
    """Hold a token, its log-probability and its bytes in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """Hold a generated token, its log-probability, and the most probable tokens in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    """Hold the log-probabilities of a choice, one entry for each token. `refusal` is always null."""

    content: list[ChatLogprob]
    refusal: None


class CalledFunction(_Answer):
    """Name the function that is called. Its arguments are JSON text."""

    name: str
    arguments: str


class ToolCall(_Answer):
    """Describe one call of a tool. A message of the role `tool` with its id answers it."""

    id: str
    type: str
    function: CalledFunction


class AnswerMessage(_Answer):
    """Hold the generated message. `refusal` is always null."""

    role: str
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []


class ChatChoice(_Answer):
    """Hold one generated message, and why it ended."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatCompletion(_Answer):
    """This is the answer to POST /v1/chat/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Tokens(_Answer):
    """This is the answer to POST /tokenize.

    `max_model_len` is how many tokens the model takes, prompt and answer together.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(_Answer):
    """This is the answer to POST /detokenize."""

    prompt: str


class Model(_Answer):
    """Describe a served model. `max_model_len` is how many tokens it takes, prompt and answer together."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class Models(_Answer):
    """List the names of the served model."""

    object: str
    data: list[Model]


class Health(_Answer):
    """Say that the server takes requests."""

    status: str


class TextUsage(_Answer):
    """Hold the number of tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(_Answer):
    """Describe the vector of one text: numbers, or little-endian float32 in base64."""

    object: str
    index: int
    embedding: list[float] | str


class Embeddings(_Answer):
    """Answer POST /v1/embeddings."""

    object: str
    model: str
    usage: TextUsage
    data: list[Embedding]


class RankedDocument(_Answer):
    """Hold the text of a ranked document."""

    text: str


class Rank(_Answer):
    """Describe one ranked document."""

    index: int
    document: RankedDocument | None = None
    relevance_score: float


class RankUsage(_Answer):
    """Hold the number of tokens that were read for a ranking."""

    total_tokens: int


class Ranks(_Answer):
    """Answer POST /v1/rerank with `documents`. The best one comes first."""

    id: str
    model: str
    usage: RankUsage
    results: list[Rank]


class TextRank(_Answer):
    """Describe one ranked text of a request with `texts`."""

    index: int
    text: str | None = None
    score: float


class Ranked(RootModel[Ranks | list[TextRank]]):
    """Answer POST /v1/rerank. The fields depend on those of the request."""


class ServerMetadata(_Answer):
    """Answer GET /v2."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(_Answer):
    """Answer GET /v2/health/live."""

    live: bool


class ServerReady(_Answer):
    """Answer GET /v2/health/ready."""

    ready: bool


class ModelReady(_Answer):
    """Answer GET /v2/models/NAME/ready."""

    name: str
    ready: bool


class TensorMetadata(_Answer):
    """Describe one input or output of a model. A dimension of any size is -1."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(_Answer):
    """Answer GET /v2/models/NAME."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(TensorMetadata):
    """Hold one output. Its values are in row-major order, unless they follow as bytes."""

    data: list[bool | int | float]


class Inference(_Answer):
    """Answer POST /v2/models/NAME/infer."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class InferenceFailed(_Answer):
    """Answer every request under /v2 that fails."""

    error: str


class Version(_Answer):
    """Hold the version of whet."""

    version: str


class Live(BaseModel):
    """Describe the served model and the engine's current state. There are more fields than these."""

    model: str
    uptime_s: float
    max_model_len: int
    max_num_seqs: int


class Error(_Answer):
    """Say what went wrong. `param` names the field at fault; `code` is a fixed word that programs can test for."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failed(_Answer):
    """This is the answer to a request that failed. Every status except 200 has this body."""

    error: Error


Responses = dict[int | str, dict[str, Any]]

_STATUSES = (400, 401, 404, 408, 413, 421, 429, 500, 503)
ERRORS: Responses = {status: {"model": Failed} for status in _STATUSES}
STATE_ERRORS: Responses = {status: {"model": Failed} for status in (*_STATUSES, 409)}
INFERENCE_ERRORS: Responses = {status: {"model": InferenceFailed} for status in (*_STATUSES, 415)}


# `itemSchema` is of OpenAPI 3.2. Older versions can only describe the whole stream, as a text.
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}


def answers(model: type[BaseModel], *, streams: bool = False) -> Responses:
    """Describe the answer with status 200: JSON as `model` describes it, and also a stream of events if `streams`."""
    success: dict[str, Any] = {"model": model}
    if streams:
        success["content"] = {"text/event-stream": {"itemSchema": _EVENT}}
    return {200: success}


_REFERENCE = "#/components/schemas/{model}"


def exchange(asked: type[BaseModel], answer: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    """Describe a request's body, which the route reads itself, and its answer, as arguments of a FastAPI route.

    `schemas` returns the schema of the body that this refers to.
    """
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=asked.__name__)}}}
    body = {"requestBody": {"required": True, "content": content}}
    return {"responses": answers(answer, streams=streams), "openapi_extra": body}


def schemas(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of request bodies and of their parts, by name."""
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    return dict(found["$defs"])
