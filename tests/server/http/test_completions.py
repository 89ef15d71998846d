"""/v1/completions and /v1/chat/completions: what is asked reaches the engine, and its words come back whole."""

from collections.abc import Iterator
from typing import Any

import pytest
from asking import ask, serving
from fake_engine import TOKENIZER, WORD_IDS, WORDS, FakeEngine

from whet.server.http.documented import ChatCompletion, Completion
from whet.server.http.run import HttpServer

CHAT = [{"role": "user", "content": "Hi"}]


ENGINE = FakeEngine()


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE) as server:
        yield server


@pytest.fixture(autouse=True)
def engine() -> FakeEngine:
    ENGINE.reset()
    return ENGINE


def complete(server: HttpServer, **body: Any) -> dict[str, Any]:
    answer = ask(server, "/v1/completions", {"model": "fake", "prompt": "Once", **body})
    assert answer.status == 200, answer.content
    Completion.model_validate(answer.json)
    return dict(answer.json)


def chat(server: HttpServer, **body: Any) -> dict[str, Any]:
    answer = ask(server, "/v1/chat/completions", {"model": "fake", "messages": CHAT, **body})
    assert answer.status == 200, answer.content
    ChatCompletion.model_validate(answer.json)
    return dict(answer.json)


def stream(server: HttpServer, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = ask(server, path, {"model": "fake", "stream": True, **body})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return answer.events


def test_a_completion(server: HttpServer, engine: FakeEngine) -> None:
    answer = complete(server, prompt="Once upon", max_tokens=5)
    assert (answer["object"], answer["model"]) == ("text_completion", "fake")
    assert answer["choices"] == [
        {"index": 0, "text": TOKENIZER.decode(WORD_IDS[:5]), "logprobs": None, "finish_reason": "length"}
    ]
    num_prompt = len(TOKENIZER.encode("Once upon"))
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 5,
        "total_tokens": num_prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert engine.asked[0].prompt_ids == TOKENIZER.encode("Once upon")


def test_what_is_not_given_and_what_is_null(server: HttpServer, engine: FakeEngine) -> None:
    assert complete(server)["usage"]["completion_tokens"] == 16
    null = dict.fromkeys(("stop", "n", "seed", "temperature", "logprobs", "echo", "stream", "logit_bias"))
    assert complete(server, **null, max_tokens=None, user="me", unknown={"a": 1})["usage"]["completion_tokens"] == 16
    first, second = engine.asked
    assert first.params == second.params
    assert (first.params.temperature, first.params.top_p, first.params.seed, first.params.stop) == (1.0, 1.0, None, ())


def test_what_is_given_reaches_the_engine(server: HttpServer, engine: FakeEngine) -> None:
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2, "seed": 11}
    given |= {"frequency_penalty": -0.3, "repetition_penalty": 1.2, "max_tokens": 9, "min_tokens": 2}
    given |= {"ignore_eos": True, "logprobs": 3}
    complete(server, **given, stop=["a", "zz"], stop_token_ids=[5], logit_bias={"12": -100, "7": 3.5})
    params = engine.asked[0].params
    assert {name: getattr(params, name) for name in given} == given
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a", "zz"), (5,), {12: -100, 7: 3.5})
    complete(server, stop="end", top_k=-1, top_p=0, max_tokens=4.0)
    params = engine.asked[1].params
    assert (params.stop, params.top_k, params.max_tokens) == (("end",), 0, 4)


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("one", [TOKENIZER.encode("one")]),
        (["one", "two"], [TOKENIZER.encode("one"), TOKENIZER.encode("two")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ("", [[TOKENIZER.bos_id]]),
    ],
)
def test_every_kind_of_prompt(server: HttpServer, engine: FakeEngine, prompt: object, wanted: list[list[int]]) -> None:
    answer = complete(server, prompt=prompt)
    assert [asked.prompt_ids for asked in engine.asked] == wanted
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(wanted)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, wanted))


def test_several_choices_of_several_prompts(server: HttpServer, engine: FakeEngine) -> None:
    answer = complete(server, prompt=["one", "two"], n=3, seed=40, max_tokens=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [asked.params.seed for asked in engine.asked] == [40, 41, 42] * 2
    assert answer["usage"]["prompt_tokens"] == len(TOKENIZER.encode("one")) + len(TOKENIZER.encode("two"))
    assert answer["usage"]["completion_tokens"] == 12


def test_no_token_at_all(server: HttpServer) -> None:
    answer = complete(server, prompt="Once", max_tokens=0, echo=True)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("Once", 0)


def test_echo_with_logprobs_is_what_evaluation_reads(server: HttpServer) -> None:
    """As lm-eval does: every list begins with the prompt; the first token has no probability."""
    ids = TOKENIZER.encode("naïve 🙂 text")
    answer = complete(server, prompt=ids, echo=True, logprobs=2, max_tokens=1, temperature=0)
    choice = answer["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"] == "naïve 🙂 text" + TOKENIZER.decode(WORD_IDS[:1])
    assert {len(values) for values in lists.values()} == {len(ids) + 1}
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    for logprob, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
        assert logprob == max(top.values())
    assert lists["text_offset"][0] == 0
    assert lists["text_offset"][-1] == len("naïve 🙂 text")
    assert lists["text_offset"] == sorted(lists["text_offset"])


def test_tokens_that_read_the_same_keep_the_more_probable_one(server: HttpServer) -> None:
    """Parts of characters all read as U+FFFD; the best of them must not be lost."""
    first, *_ = TOKENIZER.encode("🙂")
    answer = complete(server, prompt=[1, first], echo=True, logprobs=20, max_tokens=0)
    lists = answer["choices"][0]["logprobs"]
    assert lists["tokens"][1] == "�"
    assert lists["top_logprobs"][1]["�"] == lists["token_logprobs"][1] == -0.1


def test_offsets_count_from_the_beginning_of_the_prompt(server: HttpServer) -> None:
    lists = complete(server, prompt="Once", logprobs=0, max_tokens=2)["choices"][0]["logprobs"]
    words = [TOKENIZER.token_text(id) for id in WORD_IDS[:2]]
    assert lists == {
        "tokens": words,
        "token_logprobs": [-0.1, -0.1],
        "top_logprobs": [{word: -0.1} for word in words],
        "text_offset": [4, 4 + len(words[0])],
    }


@pytest.mark.parametrize("extra", [{}, {"logprobs": 1}, {"echo": True}, {"echo": True, "logprobs": 1}, {"n": 2}])
def test_a_stream_says_what_the_whole_says(server: HttpServer, extra: dict[str, Any]) -> None:
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": len(WORD_IDS), **extra}
    whole = complete(server, **body)["choices"]
    events = stream(server, "/v1/completions", **body)
    assert {event["id"] for event in events} == {events[0]["id"]}
    for choice in whole:
        parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
        assert not any("�" in part["text"] for part in parts)
        for name, values in (choice["logprobs"] or {}).items():
            assert [value for part in parts if part["logprobs"] for value in part["logprobs"][name]] == values


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_is_the_last_chunk_where_it_is_asked_for(server: HttpServer, engine: FakeEngine, path: str) -> None:
    engine.num_cached = 1
    body = {"prompt": "Once", "messages": CHAT, "max_tokens": 3}
    *chunks, last = stream(server, path, **body, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert all("usage" not in chunk and chunk["choices"] for chunk in stream(server, path, **body))


def test_a_chat(server: HttpServer, engine: FakeEngine) -> None:
    answer = chat(server, max_completion_tokens=4)
    assert answer["object"] == "chat.completion"
    message = {"role": "assistant", "content": TOKENIZER.decode(WORD_IDS[:4]), "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
    assert engine.asked[0].prompt_ids == TOKENIZER.encode("<|start|>User: Hi\nAssistant:", add_special=False)


def test_a_chat_goes_on_to_the_end_of_the_context(server: HttpServer, engine: FakeEngine) -> None:
    answer = chat(server)
    assert answer["usage"]["total_tokens"] == engine.max_model_len


def test_content_in_parts(server: HttpServer, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat(server, messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert TOKENIZER.decode(engine.asked[0].prompt_ids) == "User: one\ntwo\nAssistant:"


def test_logprobs_of_a_chat(server: HttpServer) -> None:
    body: dict[str, Any] = {"max_tokens": len(WORD_IDS), "logprobs": True, "top_logprobs": 2}
    entries = chat(server, **body)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == WORDS
    assert all(len(entry["top_logprobs"]) == 2 and entry["top_logprobs"][0]["logprob"] == -0.1 for entry in entries)
    assert all(
        entry["top_logprobs"] == []
        for entry in chat(server, max_tokens=1, logprobs=True)["choices"][0]["logprobs"]["content"]
    )
    streamed = stream(server, "/v1/chat/completions", messages=CHAT, **body)
    parts = [event["choices"][0]["logprobs"] for event in streamed]
    assert [entry for part in parts if part for entry in part["content"]] == entries


def test_a_streamed_chat(server: HttpServer) -> None:
    events = stream(server, "/v1/chat/completions", messages=CHAT, max_tokens=len(WORD_IDS), n=2)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for index in (0, 1):
        parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in parts) == WORDS
        assert (parts[-1]["delta"], parts[-1]["finish_reason"]) == ({}, "length")


def test_a_token_without_text_is_a_chunk_too(server: HttpServer) -> None:
    """Who times chunks sees when each token came; a token of a character that is not whole yet has no text."""
    body: dict[str, Any] = {"prompt": "Once", "messages": CHAT, "max_tokens": len(WORD_IDS)}
    texts = [event["choices"][0]["text"] for event in stream(server, "/v1/completions", **body)]
    assert (len(texts), "" in texts[:-1], "".join(texts)) == (len(WORD_IDS), True, WORDS)
    role, *parts, end = stream(server, "/v1/chat/completions", **body)
    assert (role["choices"][0]["delta"]["role"], end["choices"][0]["delta"]) == ("assistant", {})
    assert [part["choices"][0]["delta"] for part in parts] == [{"content": text} for text in texts]


def test_long_prompts_are_tokenised_too(engine: FakeEngine) -> None:
    engine.max_model_len = 30_000
    with serving(engine) as server:
        for count in (1000, 10_000):  # in a thread, and in another process
            text = "a word " * count
            complete(server, prompt=text)
            assert engine.asked[-1].prompt_ids == TOKENIZER.encode(text)


def test_tokenize_and_back(server: HttpServer) -> None:
    answer = ask(server, "/tokenize", {"prompt": "naïve 🙂", "return_token_strs": True}).json
    ids = TOKENIZER.encode("naïve 🙂")
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (ids, len(ids), 512)
    assert answer["token_strs"] == [TOKENIZER.token_text(id) for id in ids]
    assert ask(server, "/detokenize", {"tokens": ids}).json == {"prompt": "naïve 🙂"}
    told = ask(server, "/tokenize", {"messages": CHAT, "add_generation_prompt": False}).json
    assert ask(server, "/detokenize", {"tokens": told["tokens"]}).json == {"prompt": "<|start|>User: Hi\n"}
