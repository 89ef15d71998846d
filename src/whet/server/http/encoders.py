"""Serve text encoders: embeddings as OpenAI has them, and scores as vLLM, Jina and TEI have them."""

import asyncio
import base64
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from torch import Tensor

from whet.server.artefacts.text_encoder import TextEncoder, Tokens
from whet.server.http import documented
from whet.server.http.admission import AT_ONCE, release, unless_long
from whet.server.http.body import content_of
from whet.server.http.errors import ApiError, as_api_errors, invalid
from whet.server.http.inference import model_errors, worked
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.models import Models
from whet.server.http.request_parsing import SMALL, parse_body
from whet.server.http.tensors import written
from whet.server.http.text_requests import EmbeddingRequest, RerankRequest

Body = TypeVar("Body", bound=BaseModel)
Text = TypeVar("Text", str, str | list[int])

_GROUP = 2**16  # characters that are tokenised before it is seen whether the client has left or the server ends
_EACH = 16  # characters that take as long as what is done for a text of any length


def encoder_routes(models: Models, lifecycle: Lifecycle) -> APIRouter:
    router = APIRouter(responses=documented.ERRORS)

    @router.post("/v1/embeddings", **documented.exchange(EmbeddingRequest, documented.Embeddings))
    async def embeddings(request: Request) -> Response:
        """Return a vector for each text."""
        body = await _read(request, EmbeddingRequest)
        encoder = models.encoder(body.model, "embed")
        return await worked(request, lifecycle, _embeddings(encoder, body))

    async def rerank(request: Request) -> Response:
        """Return documents in the order of how well each answers a query."""
        body = await _read(request, RerankRequest)
        if (body.documents is None) == (body.texts is None):
            raise invalid("give the texts to be ranked, in `documents` (vLLM, Jina) or in `texts` (TEI)", "documents")
        encoder = models.encoder(body.model, None)
        return await worked(request, lifecycle, _ranked(encoder, body))

    for path in ("/v1/rerank", "/rerank"):
        router.post(path, **documented.exchange(RerankRequest, documented.Ranked))(rerank)
    return router


async def _read(request: Request, kind: type[Body]) -> Body:
    content = await content_of(request)
    content_type = request.headers.get("content-type", "")
    body: Body = await unless_long(len(content), SMALL, parse_body, kind, content, content_type)
    release(request)
    return body


async def tokenised(
    texts: Sequence[Text], tokenise: Callable[[Sequence[Text]], list[Tokens]], *, num_beside: int = 0
) -> list[Tokens]:
    """Return the tokens of texts. Long work is done in a thread, some texts at a time; cancelled, it ends after these.

    `num_beside` is the number of characters of the query that is read with each text.
    """
    sizes = [_EACH + num_beside + len(text) for text in texts]
    if sum(sizes) <= AT_ONCE:
        return tokenise(texts)
    tokens: list[Tokens] = []
    first = size = 0
    for end, more in enumerate(sizes, 1):
        size += more
        if size >= _GROUP or end == len(texts):
            tokens += await asyncio.to_thread(tokenise, texts[first:end])
            first, size = end, 0
    return tokens


async def _embeddings(encoder: TextEncoder, body: EmbeddingRequest) -> Response:
    cut_to = _cut_to(encoder, body.truncate_prompt_tokens)
    texts = body.texts
    _check_room(encoder, len(texts), "texts")
    tokens, vectors_ND = await _embedded(encoder, texts, cut_to)
    vectors_ND = _shortened(encoder, vectors_ND, body.dimensions)
    _check_finite(vectors_ND)
    data = []
    for place, vector_D in enumerate(vectors_ND):
        value: object = vector_D.tolist()
        if body.encoding_format == "base64":
            value = base64.b64encode(vector_D.contiguous().numpy().astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": place, "embedding": value})
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), _usage(tokens))
    return await written({"object": "list", "model": encoder.artefact.name, "usage": usage}, "data", data)


async def _ranked(encoder: TextEncoder, body: RerankRequest) -> Response:
    is_tei = body.texts is not None
    stated = body.truncate_prompt_tokens
    cut_to = _cut_to(encoder, -1 if is_tei and body.truncate and stated is None else stated)
    contents = body.contents
    beside = int(encoder.use.task == "embed")  # the query is a text of its own
    _check_room(encoder, len(contents), "documents", beside)
    tokens, scores_N = await _scored(encoder, body.query, contents, cut_to)
    if encoder.use.task == "rerank" and not (is_tei and body.raw_scores):
        has_sigmoid = is_tei or encoder.use.activation == "sigmoid"
        scores_N = scores_N.sigmoid() if has_sigmoid else scores_N
    _check_finite(scores_N)
    scores = scores_N.tolist()
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    if is_tei:
        ranks = [{"index": place, "score": scores[place]} for place in order]
        texts = [{**rank, "text": contents[rank["index"]]} for rank in ranks] if body.return_text else ranks
        return await written({}, "", texts)
    results = []
    for place in order[: body.top_n or None]:
        document = {} if body.return_documents is False else {"document": {"text": contents[place]}}
        results.append({"index": place, **document, "relevance_score": scores[place]})
    head = {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": encoder.artefact.name,
        "usage": {"total_tokens": _usage(tokens)},
    }
    return await written(head, "results", results)


async def _embedded(
    encoder: TextEncoder, texts: Sequence[str | list[int]], cut_to: int | None
) -> tuple[list[Tokens], Tensor]:
    """Return the tokens that were read, and the vectors of texts, float32 [texts, D]."""
    with as_api_errors():
        tokens = await tokenised(texts, lambda some: [encoder.tokens(text, cut_to=cut_to) for text in some])
    with model_errors(encoder.artefact):
        return tokens, await encoder.embed(tokens)


async def _scored(
    encoder: TextEncoder, query: str, contents: Sequence[str], cut_to: int | None
) -> tuple[list[Tokens], Tensor]:
    """Return the tokens that were read, and float32 [texts]: the model's outputs, or cosines of its vectors."""
    if encoder.use.task != "rerank":
        tokens, vectors_ND = await _embedded(encoder, [query, *contents], cut_to)
        return tokens, F.cosine_similarity(vectors_ND[:1], vectors_ND[1:], dim=-1)
    with as_api_errors():
        first = await unless_long(len(query), AT_ONCE, partial(encoder.query, cut_to=cut_to), query)
        pairs = partial(encoder.pairs, first, cut_to=cut_to)
        tokens = await tokenised(contents, pairs, num_beside=len(query))
    with model_errors(encoder.artefact):
        return tokens, await encoder.score(tokens)


def _cut_to(encoder: TextEncoder, asked: int | None) -> int | None:
    """Return to how many tokens longer texts are cut; None if they are refused. -1 asks for what the model takes."""
    if asked is None:
        return None
    if asked > encoder.max_tokens:
        raise invalid(
            f"truncate_prompt_tokens is {asked}, and {encoder.artefact.name} takes {encoder.max_tokens} tokens",
            "truncate_prompt_tokens",
        )
    return encoder.max_tokens if asked == -1 else asked


def _check_room(encoder: TextEncoder, count: int, what: str, num_beside: int = 0) -> None:
    most = encoder.artefact.max_waiting - num_beside
    if count > most:
        param = "input" if what == "texts" else "documents"
        raise ApiError(413, f"{count} {what} in one request; this server takes {most} at most", param=param)


def _shortened(encoder: TextEncoder, vectors_ND: Tensor, dimensions: int | None) -> Tensor:
    """Return vectors of so many numbers, scaled to length 1 again.

    Raises:
        ApiError: The model was not trained for vectors of this length.
    """
    width, known = vectors_ND.shape[1], encoder.use.dimensions
    if dimensions is None or dimensions == width:
        return vectors_ND
    if dimensions > width or (known is not None and dimensions not in known):
        allowed = f"1 to {width}" if known is None else ", ".join(map(str, sorted({*known, width})))
        raise invalid(f"{encoder.artefact.name} makes vectors of {allowed} numbers, not {dimensions}", "dimensions")
    return F.normalize(vectors_ND[:, :dimensions], dim=-1)


def _check_finite(values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise ApiError(500, "the model's answer holds NaN or infinity", code="engine_error")


def _usage(tokens: Sequence[Tokens]) -> int:
    return sum(len(one.ids) for one in tokens)
