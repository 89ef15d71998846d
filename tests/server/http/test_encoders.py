"""Embeddings and reranking over HTTP, judged by transformers in torch, and asked by OpenAI's own client."""

import asyncio
import base64
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Answer, ask, serving
from fake_engine import FakeEngine
from tiny_encoders import LENGTH, logit, tuned, vector, write_embedder, write_reranker

from whet.core.artefact import load
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.artefacts.text_encoder import Tokens, text_encoder
from whet.server.http.encoders import tokenised
from whet.server.http.models import Models
from whet.server.http.run import HttpServer

TEXTS = ["a cat", "the dog runs under the tree", "what is red"]
LONG = "cat " * 40


@dataclass(frozen=True)
class Served:
    server: HttpServer
    embedder: Path
    reranker: Path
    encoders: dict[str, Any]

    def ask(self, path: str, **body: Any) -> Answer:
        return ask(self.server, path, body)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("encoders")
    originals = {"emb": write_embedder(folder / "e"), "rank": write_reranker(folder / "r")}
    originals["classes"] = write_reranker(folder / "c", num_labels=3)
    made = {name: tuned(directory, folder / f"{name}-tuned") for name, directory in originals.items()}
    artefacts = {name: ServedArtefact(name, load(directory)) for name, directory in made.items()}
    encoders = {name: text_encoder(artefacts[name], directory) for name, directory in made.items()}
    with serving(Models({("gpt",): FakeEngine()}, artefacts, encoders)) as server:  # type: ignore[arg-type, dict-item]
        yield Served(server, originals["emb"], originals["rank"], encoders)
    for artefact in artefacts.values():
        artefact.close()


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_by_openais_client(served: Served, encoding: Any) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{served.server.url}/v1", api_key="none")
    more = {} if encoding is None else {"encoding_format": encoding}
    found = client.embeddings.create(model="emb", input=TEXTS, **more)
    assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("emb", 17, 17)
    assert [one.index for one in found.data] == [0, 1, 2]
    for one, text in zip(found.data, TEXTS, strict=True):
        given = one.embedding
        if isinstance(given, str):  # the client decodes base64 where it asked for that itself
            given = torch.frombuffer(bytearray(base64.b64decode(given)), dtype=torch.float32).tolist()
        torch.testing.assert_close(torch.tensor(given), vector(served.embedder, text), rtol=0, atol=1e-5)
    client.close()


@pytest.mark.parametrize("given", ["a cat", [2, 6, 7, 3], ["a cat"], [[2, 6, 7, 3]]])
def test_every_form_of_input(served: Served, given: Any) -> None:
    answer = served.ask("/v1/embeddings", input=given)
    [one] = answer.json["data"]
    torch.testing.assert_close(torch.tensor(one["embedding"]), vector(served.embedder, "a cat"), rtol=0, atol=1e-5)


def test_texts_that_are_cut(served: Served) -> None:
    answer = served.ask("/v1/embeddings", model="emb", input=LONG, truncate_prompt_tokens=6)
    assert answer.json["usage"]["total_tokens"] == 6
    expected = vector(served.embedder, "cat cat cat cat")  # and the two special tokens
    torch.testing.assert_close(torch.tensor(answer.json["data"][0]["embedding"]), expected, rtol=0, atol=1e-5)
    assert served.ask("/v1/embeddings", input=LONG, truncate_prompt_tokens=-1).json["usage"]["total_tokens"] == LENGTH


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"input": LONG}, 400, "input", f"42 tokens, and emb takes {LENGTH}"),
        ({"input": "a", "truncate_prompt_tokens": 99}, 400, "truncate_prompt_tokens", "takes 24 tokens"),
        ({"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "from 1 up"),
        ({"input": []}, 400, "input", "at least one text"),
        ({"input": [[]]}, 400, "input", "empty"),
        ({"input": [5, 99]}, 400, "input", "the model has no token 99: give tokens from 0 to 18"),
        ({"input": [[5], [2147483647]]}, 400, "input", "the model has no token 2147483647"),
        ({"input": [-1]}, 400, "input", "input"),
        ({"input": "a\ud800"}, 400, None, "Unicode"),
        ({"input": "a", "dimensions": 8}, 400, "dimensions", "vectors of 32 numbers, not 8"),
        ({"input": "a", "dimensions": 33}, 400, "dimensions", "not 33"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "model": "rank"}, 400, "model", "POST /v1/rerank"),
        ({"input": "a", "model": "classes"}, 400, "model", "a classifier with 3 labels"),
        ({"input": "a", "model": "gpt"}, 400, "model", "is a language model"),
        ({"input": "a", "model": "other"}, 404, "model", "there is no model 'other'"),
        ({}, 400, "input", "required"),
    ],
)
def test_embeddings_that_are_refused(
    served: Served, body: dict[str, Any], status: int, param: str | None, message: str
) -> None:
    answer = served.ask("/v1/embeddings", **body)
    assert answer.status == status
    assert (message in answer.error["message"], answer.error["param"]) == (True, param), answer.error
    if body.get("input") == LONG:
        assert answer.error["code"] == "context_length_exceeded"


def test_a_large_body_and_one_that_is_none(served: Served) -> None:
    answer = served.ask("/v1/embeddings", input=["a cat"] * 1024 + ["the dog"] * 200, user="x" * 20_000)
    assert answer.status == 413
    answer = served.ask("/v1/embeddings", input=["a cat"] * 1000, user="x" * 20_000)
    assert len(answer.json["data"]) == 1000
    assert ask(served.server, "/v1/embeddings", b"{").error["code"] == "invalid_json"


QUERY, DOCUMENTS = "what is a cat", ["the dog runs", "a cat sits on the mat", "blue"]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_scores_of_a_cross_encoder(served: Served, path: str) -> None:
    answer = served.ask(path, model="rank", query=QUERY, documents=[DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]])
    expected = [sigmoid(logit(served.reranker, QUERY, text)) for text in DOCUMENTS]
    found = answer.json
    assert found["id"].startswith("rerank-")
    assert (found["model"], found["usage"]) == ("rank", {"total_tokens": 3 * 7 + 3 + 6 + 1})
    assert {one["index"]: one["document"]["text"] for one in found["results"]} == dict(enumerate(DOCUMENTS))
    scores = {one["index"]: one["relevance_score"] for one in found["results"]}
    assert [scores[i] for i in range(3)] == pytest.approx(expected, abs=1e-5)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_the_best_ones_without_their_texts(served: Served) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS}
    every = served.ask("/v1/rerank", model="rank", **body).json["results"]
    best = served.ask("/v1/rerank", model="rank", **body, top_n=2, return_documents=False).json["results"]
    assert best == [{key: one[key] for key in ("index", "relevance_score")} for one in every[:2]]


def test_scores_as_text_embeddings_inference_gives_them(served: Served) -> None:
    body: dict[str, Any] = {"model": "rank", "query": QUERY, "texts": DOCUMENTS}
    logits = [logit(served.reranker, QUERY, text) for text in DOCUMENTS]
    for raw, expected in ((True, logits), (False, list(map(sigmoid, logits)))):
        found = served.ask("/rerank", **body, raw_scores=raw, return_text=True).json
        assert {one["index"]: one["text"] for one in found} == dict(enumerate(DOCUMENTS))
        assert [one["score"] for one in sorted(found, key=lambda one: one["index"])] == pytest.approx(
            expected, abs=1e-5
        )
    assert served.ask("/rerank", **body).json[0].keys() == {"index", "score"}
    long = {**body, "texts": [LONG]}
    assert served.ask("/rerank", **long).error["code"] == "context_length_exceeded"
    [cut] = served.ask("/rerank", **long, truncate=True, raw_scores=True).json
    shorter = "cat " * (LENGTH - 3 - len(QUERY.split()))
    assert cut["score"] == pytest.approx(logit(served.reranker, QUERY, shorter), abs=1e-5)


def test_cosines_of_a_bi_encoder(served: Served) -> None:
    found = served.ask("/v1/rerank", model="emb", query=QUERY, documents=DOCUMENTS).json["results"]
    vectors = [vector(served.embedder, text) for text in [QUERY, *DOCUMENTS]]
    for one in found:
        assert one["relevance_score"] == pytest.approx(float(vectors[0] @ vectors[1 + one["index"]]), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": "a"}, "in `documents` (vLLM, Jina) or in `texts` (TEI)"),
        ({"query": "a", "documents": ["b"], "texts": ["b"]}, "in `documents`"),
        ({"documents": ["b"]}, "query"),
        ({"query": "a", "documents": []}, "at least 1"),
        ({"query": "a", "documents": [5]}, "documents"),
        ({"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ({"query": LONG, "documents": ["b"], "model": "rank"}, "tokens"),
        ({"query": LONG, "texts": ["b"], "model": "rank", "truncate": True}, "tokens"),
        ({"query": "a", "documents": ["b"], "model": "gpt"}, "is a language model"),
        ({"query": "a", "documents": ["b"], "model": "classes"}, "a classifier with 3 labels"),
    ],
)
def test_rankings_that_are_refused(served: Served, body: dict[str, Any], message: str) -> None:
    answer = served.ask("/v1/rerank", **body)
    assert answer.status == 400
    assert message in answer.error["message"]


@pytest.mark.parametrize(
    ("num_words", "cut_to", "status"),
    [
        (LENGTH - 3, -1, 400),
        (LENGTH - 3, None, 400),
        (LENGTH - 4, -1, 200),
        (LENGTH - 5, 5, 400),
        (1, 5, 200),
        (2, 5, 400),
    ],
)
def test_a_query_leaves_room_for_a_text(served: Served, num_words: int, cut_to: int | None, status: int) -> None:
    """A pair has 3 special tokens. Where no token of a text has room, every document would have the same score."""
    cut = {} if cut_to is None else {"truncate_prompt_tokens": cut_to}
    texts = ["dog sits", "tree"] if cut else ["dog", "tree"]
    answer = served.ask("/v1/rerank", model="rank", query="cat " * num_words, documents=texts, **cut)
    assert answer.status == status
    if status == 400:
        assert "no text has room: shorten the query" in answer.error["message"]
        assert answer.error["param"] == "query"
    else:
        assert len({one["relevance_score"] for one in answer.json["results"]}) == 2


def test_so_many_documents_are_counted_as_documents(served: Served) -> None:
    most = served.encoders["rank"].artefact.max_waiting
    for model, beside in (("rank", 0), ("emb", 1)):
        answer = served.ask("/v1/rerank", model=model, query="a", documents=["a"] * (most - beside + 1))
        assert (answer.status, answer.error["param"]) == (413, "documents")
        assert f"{most - beside + 1} documents in one request; this server takes {most - beside}" in str(answer.error)


class Watched:
    """A tokenizer of the tokenizers library that notes how many characters it reads, and in which threads."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.num_characters = 0
        self.threads: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.tokenizer, name)
        return (lambda *args, **kwargs: self.noted(found, *args, **kwargs)) if name.startswith("encode") else found

    def noted(self, encode: Any, given: Any, **settings: Any) -> Any:
        texts = [given] if isinstance(given, str) else given
        self.num_characters += sum(len(part) for one in texts for part in ([one] if isinstance(one, str) else one))
        self.threads.add(threading.current_thread().name)
        return encode(given, **settings)


@pytest.mark.parametrize(
    ("query", "status"),
    [("x" * 11_800, 200), ("cat " * 2_950, 400)],  # one unknown token, which leaves room, and too many
)
def test_a_query_is_read_once_and_beside_other_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch, query: str, status: int
) -> None:
    tokenizer = served.encoders["rank"]._tokenizer
    watched = Watched(tokenizer._tokenizer)
    monkeypatch.setattr(tokenizer, "_tokenizer", watched)
    answer = served.ask("/rerank", model="rank", query=query, documents=["a"] * 1023)
    assert answer.status == status
    if status == 400:
        assert (answer.error["param"], answer.error["code"]) == ("query", "context_length_exceeded")
        assert watched.num_characters == len(query)
    else:
        assert watched.num_characters == len(query) + 1023
    assert all(name.startswith("asyncio_") for name in watched.threads), watched.threads


def test_no_more_texts_are_read_once_the_client_has_left() -> None:
    started, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def tokenise(texts: Sequence[str]) -> list[Tokens]:
        seen.append(len(texts))
        started.set()
        goes_on.wait(20)
        ended.set()
        return [Tokens([1])] * len(texts)

    async def leave() -> None:
        reading = asyncio.ensure_future(tokenised(["cat " * 30_000] * 5, tokenise))
        assert await asyncio.to_thread(started.wait, 20)
        reading.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await asyncio.to_thread(ended.wait, 20)

    asyncio.run(leave())
    assert seen == [1]


def test_texts_that_are_read_in_groups_keep_their_order(served: Served) -> None:
    texts = [name * count for count in range(1, 8) for name in ("a cat ", "the dog " * 5_000)]
    tokens = asyncio.run(tokenised(texts, lambda some: [served.encoders["emb"].tokens(one, cut_to=9) for one in some]))
    assert tokens == [served.encoders["emb"].tokens(one, cut_to=9) for one in texts]
