"""Define the requests for embeddings and for scores, as clients send them.

Sources: platform.openai.com/docs/api-reference/embeddings; docs.vllm.ai, "OpenAI-Compatible Server" (embeddings,
re-rank); jina.ai/reranker; huggingface.github.io/text-embeddings-inference (rerank).
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from whet.server.http.protocol import Each, Name, TokenIds, several

_MAX_TEXTS = 2048  # as OpenAI's

Texts = Annotated[list[str], Field(min_length=1, max_length=_MAX_TEXTS), Each]
Count = Annotated[int, Field(ge=1, lt=2**31)]


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("a number of tokens from 1 up, or -1 for as many as the model takes")
    return value


def _some(value: object) -> object:
    if value == []:
        raise ValueError("give at least one text")
    return value


Cut = Annotated[int, Field(ge=-1, lt=2**31, json_schema_extra={"not": {"const": 0}}), AfterValidator(_not_zero)]


class _TextRequest(BaseModel):
    # strict: "5" is no number, and 1 no boolean
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    model: Name | None = None
    truncate_prompt_tokens: Cut | None = None


class EmbeddingRequest(_TextRequest):
    """Hold the body of POST /v1/embeddings: a text, token ids, or a list of either."""

    input: Annotated[
        str
        | Texts
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=_MAX_TEXTS), Each],
        BeforeValidator(_some),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None

    @property
    def texts(self) -> list[str | list[int]]:
        return several(self.input)


class Document(BaseModel):
    """Hold a document that is sent as an object."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: str


class RerankRequest(_TextRequest):
    """Hold the body of POST /v1/rerank: with `documents` as vLLM and Jina have it, or with `texts` as TEI has it."""

    query: str
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=_MAX_TEXTS), Each] | None = None
    top_n: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    return_documents: bool | None = None
    texts: Texts | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None

    @property
    def contents(self) -> list[str]:
        """Return the texts that are to be ranked, whichever field they are in."""
        documents: list[Any] = list(self.texts or self.documents or ())
        return [one if isinstance(one, str) else one.text for one in documents]
