"""Answers as the OpenAPI page describes them. They are written elsewhere, as JSON; tests hold the two together."""

from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel
from pydantic.json_schema import models_json_schema


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class CachedTokens(_Answer):
    cached_tokens: int


class Usage(_Answer):
    """Tokens read and made."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Logprobs(_Answer):
    """Four lists side by side; a first token has no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(_Answer):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None


class Completion(_Answer):
    """Of POST /v1/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(_Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    content: list[ChatLogprob]
    refusal: None


class AnswerMessage(_Answer):
    role: str
    content: str
    refusal: None


class ChatChoice(_Answer):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatCompletion(_Answer):
    """Of POST /v1/chat/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Tokens(_Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(_Answer):
    prompt: str


class Model(_Answer):
    id: str
    object: str
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class Models(_Answer):
    object: str
    data: list[Model]


class Health(_Answer):
    status: str


class TextUsage(_Answer):
    prompt_tokens: int
    total_tokens: int


class Embedding(_Answer):
    """The vector of one text: numbers, or little-endian float32 in base64."""

    object: str
    index: int
    embedding: list[float] | str


class Embeddings(_Answer):
    """Of POST /v1/embeddings."""

    object: str
    model: str
    usage: TextUsage
    data: list[Embedding]


class RankedDocument(_Answer):
    text: str


class Rank(_Answer):
    index: int
    document: RankedDocument | None = None
    relevance_score: float


class RankUsage(_Answer):
    total_tokens: int


class Ranks(_Answer):
    """Of POST /v1/rerank with `documents`, the best first."""

    id: str
    model: str
    usage: RankUsage
    results: list[Rank]


class TextRank(_Answer):
    """One text of POST /v1/rerank with `texts`."""

    index: int
    text: str | None = None
    score: float


class Ranked(RootModel[Ranks | list[TextRank]]):
    """Of POST /v1/rerank: the fields depend on those of the request."""


class ServerMetadata(_Answer):
    """Of GET /v2."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(_Answer):
    live: bool


class ServerReady(_Answer):
    ready: bool


class ModelReady(_Answer):
    name: str
    ready: bool


class TensorMetadata(_Answer):
    """One input or output of a model; a dimension of any size is -1."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(_Answer):
    """Of GET /v2/models/NAME."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(TensorMetadata):
    """One output; its values in row-major order, unless they follow as bytes."""

    data: list[bool | int | float]


class Inference(_Answer):
    """Of POST /v2/models/NAME/infer."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class InferenceFailed(_Answer):
    """Every answer but 200, under /v2."""

    error: str


class Version(_Answer):
    version: str


class Live(BaseModel):
    """The engine's figures, and what is served."""

    model: str
    uptime_s: float
    max_model_len: int
    max_num_seqs: int


class Error(_Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class Failed(_Answer):
    """Every answer but 200."""

    error: Error


Responses = dict[int | str, dict[str, Any]]

_STATUSES = (400, 401, 404, 408, 413, 421, 429, 500, 503)
ERRORS: Responses = {status: {"model": Failed} for status in _STATUSES}
INFERENCE_ERRORS: Responses = {status: {"model": InferenceFailed} for status in (*_STATUSES, 415)}


# of OpenAPI 3.2; before, `schema` is of the whole stream, and says nothing
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}


def answers(model: type[BaseModel], *, streams: bool = False) -> Responses:
    """A 200 of that shape, or as events where it streams."""
    success: dict[str, Any] = {"model": model}
    if streams:
        success["content"] = {"text/event-stream": {"itemSchema": _EVENT}}
    return {200: success}


_REFERENCE = "#/components/schemas/{model}"


def body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a request's body, which the route reads itself. `schemas` has what it refers to."""
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def schemas(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the schemas of request bodies and of their parts, by name."""
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    return dict(found["$defs"])
