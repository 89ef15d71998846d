"""whet.Engine: a plain call, a loop, asyncio; requests that end early or never begin."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from gated_model import ENDLESS, GREEDY, LONG, GatedModel, eventually, expected, is_idle
from hash_model import HashModel
from letters import EOS, Letters
from naive import naive_output

import whet
from whet.errors import OptionError, QueueFull, RequestError, TargetError
from whet.models.step import Allocation
from whet.server.completion import Delta, join
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(
        HashModel(), EngineOptions(max_num_seqs=4, max_batch_tokens=16, memory=4000), tokenizer=Letters()
    ) as engine:
        yield engine


@pytest.fixture
def gated() -> Iterator[tuple[Engine, GatedModel]]:
    model = GatedModel()
    with Engine(model, EngineOptions(max_num_seqs=1, max_waiting=1)) as engine:
        yield engine, model
        model.gate.set()


def test_it_is_public() -> None:
    assert whet.Engine is Engine
    assert whet.SamplingParams is SamplingParams


def test_one_prompt_or_several(engine: Engine) -> None:
    one = engine.generate("hello", GREEDY)
    assert one.token_ids == expected("hello")
    assert one.text == Letters().decode(one.token_ids)
    assert (one.finish_reason, one.num_prompt_tokens) == ("length", 5)
    assert 0 <= one.queue_s <= (one.ttft_s or 0) <= one.e2e_s
    several = engine.generate(["hello", [7, 4, 11], "x" * 30] * 4, GREEDY)
    assert [done.token_ids for done in several[:3]] == [expected("hello"), expected("hel"), expected("x" * 30)]
    assert several[3].num_cached_tokens == 4
    assert engine.generate([7, 4, 11], GREEDY).token_ids == expected("hel")
    assert engine.generate([], GREEDY) == []
    own = engine.generate(["a", "b"], [GREEDY, SamplingParams(temperature=0, max_tokens=1)])
    assert [len(done.token_ids) for done in own] == [12, 1]
    assert 1 <= len(engine.generate("a").token_ids) <= 16
    assert is_idle(engine)


def test_many_more_than_the_queue_holds() -> None:
    with Engine(HashModel(), EngineOptions(max_num_seqs=2, max_waiting=0)) as engine:
        done = engine.generate([[i] for i in range(30)], GREEDY)
    assert [one.token_ids for one in done] == [naive_output(HashModel().logits_after, [i], GREEDY) for i in range(30)]


def test_piece_by_piece(engine: Engine) -> None:
    deltas = list(engine.stream("hello", GREEDY))
    assert join(deltas).token_ids == expected("hello")
    assert len(deltas) > 3
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert "".join(delta.text for delta in deltas) == engine.generate("hello", GREEDY).text


def test_leaving_a_loop_aborts(gated: tuple[Engine, GatedModel]) -> None:
    """The model stops after the first token until the loop has been left, so the answer can't end before."""
    engine, model = gated
    for number in (1, 2):
        model.gate.clear()
        model.num_let_pass = 1
        stream = engine.stream([7, 4, 11], LONG)
        next(stream)
        stream.close()
        assert list(stream) == []
        model.gate.set()
        assert eventually(lambda: is_idle(engine))
        assert engine.stats().request_success["abort"] == number


def test_asyncio(engine: Engine) -> None:
    async def read(prompt: str) -> list[int]:
        return [token_id async for delta in engine.stream_async(prompt, GREEDY) for token_id in delta.token_ids]

    async def all_at_once() -> None:
        texts = ["a", "hello", "x" * 40, "hello"]
        assert await asyncio.gather(*map(read, texts)) == [expected(text) for text in texts]
        one, several = await asyncio.gather(
            engine.generate_async("hi", GREEDY), engine.generate_async(["ho", "ha"], GREEDY)
        )
        assert one.token_ids == expected("hi")
        assert [done.token_ids for done in several] == [expected("ho"), expected("ha")]
        with pytest.raises(RequestError, match="empty"):
            engine.stream_async([])

    asyncio.run(all_at_once())
    assert is_idle(engine)


def test_asyncio_aborts() -> None:
    async def leave_in_every_way() -> None:
        stream = engine.stream_async([1, 2], ENDLESS)
        await anext(stream)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        dropped = engine.stream_async([1, 3], ENDLESS)
        await anext(dropped)
        del dropped
        task = asyncio.create_task(engine.generate_async([1, 4], ENDLESS))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Engine(HashModel(max_model_len=60_000), EngineOptions(max_num_seqs=4, memory=4_000_000)) as engine:
        asyncio.run(leave_in_every_way())
        assert eventually(lambda: is_idle(engine))
        assert engine.stats().request_success["abort"] == 3


def test_a_loop_that_is_closed_loses_its_requests() -> None:
    async def begin() -> None:
        streams.append(engine.stream_async([1, 2], ENDLESS))
        await anext(streams[0])

    streams: list[Any] = []
    with Engine(HashModel(max_model_len=60_000), EngineOptions(memory=4_000_000)) as engine:
        asyncio.run(begin())
        assert eventually(lambda: is_idle(engine))
        assert engine.stats().request_success["abort"] == 1


def test_abort_by_id(gated: tuple[Engine, GatedModel]) -> None:
    engine, model = gated
    deltas: list[Delta] = []
    running = engine.submit([1], LONG, on_delta=deltas.append)
    waiting = engine.submit([2], LONG, on_delta=deltas.append)
    engine.abort("nobody")
    engine.abort(waiting)
    model.gate.set()
    assert eventually(lambda: any(delta.request_id == waiting for delta in deltas))
    engine.abort(running)
    assert eventually(lambda: is_idle(engine))
    last = {delta.request_id: delta for delta in deltas}
    assert (last[waiting].finish_reason, last[waiting].token_ids) == ("abort", [])
    assert last[running].finish_reason in ("abort", "length")


def test_a_full_queue_says_so_at_once(gated: tuple[Engine, GatedModel]) -> None:
    engine, model = gated
    streams = [engine.stream([1], GREEDY)]  # a plain caller waits anyway: no limit
    assert model.is_waiting.wait(10)
    with engine.reserve() as place:
        with pytest.raises(QueueFull, match="2 requests are running or waiting"):
            engine.reserve()
        with pytest.raises(QueueFull):
            engine.submit([1], GREEDY, on_delta=print)
        deltas: list[Delta] = []
        engine.submit([3], GREEDY, on_delta=deltas.append, reservation=place)
    with pytest.raises(QueueFull):  # used: leaving the block has given nothing back
        engine.reserve()
    model.gate.set()
    assert [len(list(stream)) for stream in streams] == [12]
    assert eventually(lambda: bool(deltas) and deltas[-1].finish_reason is not None)
    places = [engine.reserve(), engine.reserve()]
    for place in places * 2:
        place.release()
    engine.reserve().release()


def test_an_id_of_its_own(gated: tuple[Engine, GatedModel]) -> None:
    engine, _ = gated
    assert engine.submit([1], GREEDY, on_delta=print, request_id="mine") == "mine"
    with pytest.raises(RequestError, match="a request mine is there already"):
        engine.submit([1], GREEDY, on_delta=print, request_id="mine")


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ([[]], GREEDY, "the prompt is empty"),
        ("", GREEDY, "the prompt is empty"),
        ([1, 40], GREEDY, "the model has no token 40: give tokens from 0 to 39"),
        ([-1], GREEDY, "no token -1"),
        ([1, 2.5], GREEDY, "whole numbers"),
        ([1] * 60, GREEDY, "the model takes 64 tokens, and this asks for 60 in the prompt and 12 to be generated"),
        ([1] * 64, SamplingParams(max_tokens=None), "the model takes 64 tokens, and this asks for 64 in the prompt"),
        ([1] * 65, SamplingParams(max_tokens=0), "the model takes 64"),
        ([1], SamplingParams(temperature=-1), "temperature=-1"),
        ([1], SamplingParams(logit_bias={40: 1.0}), "logit_bias"),
        ([[1], [2]], [GREEDY], "2 prompts and 1 params"),
    ],
)
def test_requests_that_cannot_be_served(engine: Engine, prompt: Any, params: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        engine.generate(prompt, params)
    assert is_idle(engine)


def test_a_refusal_names_the_field_as_the_http_error_does(engine: Engine) -> None:
    with pytest.raises(RequestError) as too_long:
        engine.generate([1] * 60, GREEDY)
    assert (too_long.value.param, too_long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(RequestError) as unknown:
        engine.generate([40], GREEDY)
    assert (unknown.value.param, unknown.value.code) == ("prompt", None)


def test_up_to_the_last_token_that_fits(engine: Engine) -> None:
    done = engine.generate([1] * 52, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(done.token_ids) == 12
    assert engine.generate([1] * 64, SamplingParams(max_tokens=0)).token_ids == []


def test_without_a_tokenizer() -> None:
    with Engine(HashModel()) as engine:
        assert engine.tokenizer is None
        assert engine.generate([1], GREEDY).text == ""
        with pytest.raises(RequestError, match="give the prompt as a list of token ids"):
            engine.generate("hello", GREEDY)
        with pytest.raises(RequestError, match="use stop_token_ids"):
            engine.generate([1], SamplingParams(stop=("x",)))


def test_ends(engine: Engine) -> None:
    whole = engine.generate("hello", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    text, ids = whole.text, whole.token_ids
    middle = text[5:8]
    done = engine.generate("hello", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=("~", middle)))
    assert (done.finish_reason, done.text) == ("stop", text[: text.index(middle)])
    at = next(i for i in range(8, 40) if ids[i] not in ids[:i])
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=(ids[at],))
    done = engine.generate("hello", params)
    assert (done.finish_reason, done.token_ids) == ("stop", ids[: at + 1])
    assert done.text == Letters().decode(ids[:at])  # what ends a text is not part of it
    biased = {"temperature": 0.0, "max_tokens": 9, "logit_bias": {EOS: 99.0}}
    assert engine.generate("hello", SamplingParams(**biased)).token_ids == [EOS]
    assert engine.generate("hello", SamplingParams(**biased, ignore_eos=True)).token_ids == [EOS] * 9
    done = engine.generate("hello", SamplingParams(**biased, min_tokens=4))
    assert len(done.token_ids) == 5
    assert EOS not in done.token_ids[:4]


def test_a_reader_that_raises_loses_its_own_request(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def broken(delta: Delta) -> None:
        raise ValueError("cannot read")

    with caplog.at_level(logging.CRITICAL):
        engine.submit([1, 2], LONG, on_delta=broken)
        assert engine.generate("hello", GREEDY).token_ids == expected("hello")
        assert eventually(lambda: is_idle(engine))
    assert engine.stats().request_success["abort"] == 1


class Told:
    def __init__(self) -> None:
        self.first: list[float] = []
        self.between: list[float] = []
        self.ends: list[tuple[float, float, str]] = []

    def first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def inter_token(self, seconds: float) -> None:
        self.between.append(seconds)

    def finished(self, e2e_s: float, queue_s: float, reason: str) -> None:
        self.ends.append((e2e_s, queue_s, reason))


def test_observers_and_stats(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Told):
        def inter_token(self, seconds: float) -> None:
            raise ValueError("no")

    told = Told()
    with caplog.at_level(logging.CRITICAL), Engine(HashModel(), EngineOptions(speculation="off")) as engine:
        engine.listen(Broken())
        engine.listen(told)
        done = engine.generate(
            [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [9] * 5], GREEDY
        )  # none may find another's beginning
        again = engine.generate([[1, 2, 3, 4, 5]], GREEDY)
        stats = engine.stats()
    assert (len(told.first), len(told.between), len(told.ends)) == (4, 4 * 11, 4)
    assert told.ends[0][2] == "length"
    assert sum(told.between) + sum(told.first) == pytest.approx(sum(one.e2e_s for one in done + again))
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (20, 48)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (20, 4)
    assert stats.request_success == {"stop": 0, "length": 4, "abort": 0, "error": 0}
    assert stats.tokens_per_s == 48
    assert (stats.num_running, stats.num_waiting, stats.num_preemptions) == (0, 0, 0)
    assert (stats.speculation, stats.speculation_gain, stats.num_draft_tokens) == ("off", None, 0)


def test_a_draft_model_and_lookup_through_the_engine() -> None:
    prompts = [[i, 7, 3] for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=60)
    wanted = [naive_output(HashModel(max_model_len=100).logits_after, prompt, params) for prompt in prompts]
    small = HashModel(block_size=16, max_model_len=100)
    for draft, options in ((small, {}), (None, {"speculation": "ngram"}), (None, {})):
        with Engine(HashModel(max_model_len=100), EngineOptions(**options), draft=draft) as engine:
            assert [one.token_ids for one in engine.generate(prompts, params)] == wanted
            stats = engine.stats()
        assert stats.num_draft_tokens > 0
        assert stats.speculation in ("on", "paused")


def test_salts_through_the_engine(engine: Engine) -> None:
    async def ask(salt: str) -> int:
        done = await engine.generate_async([1, 2, 3, 4, 5, 6], GREEDY, cache_salt=salt)
        return done.num_cached_tokens

    assert [asyncio.run(ask(salt)) for salt in ("a", "b", "a", "")] == [0, 0, 4, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs=0: it is a whole number of at least 1"),
        ({"max_batch_tokens": 32}, "max_batch_tokens=32 is below max_num_seqs=64"),
        ({"max_step_ms": 0}, "max_step_ms"),
        ({"num_draft_tokens": 65}, "num_draft_tokens=65: it is at most 64"),
        ({"memory": 0}, "memory=0"),
        ({"speculation": "maybe"}, "speculation='maybe': write auto, off, ngram"),
        ({"max_model_len": 65}, "max_model_len=65: the model takes 1 to 64 tokens"),
        ({"memory": 511}, r"one sequence of 64 tokens takes 512 B and the memory for them is 511 B: give more"),
        ({"draft": HashModel(vocab_size=41)}, "a vocabulary of 41 tokens, the model one of 40"),
        ({"draft": HashModel(), "speculation": "ngram"}, "a draft model with speculation='ngram'"),
        ({"draft": HashModel(can_rewind=False)}, "cannot go back"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    draft = options.pop("draft", None)
    with pytest.raises(OptionError, match=said):
        Engine(HashModel(), EngineOptions(**options), draft=draft)


def test_fields_of_the_options_as_keywords_go_on_working() -> None:
    said = r"write whet.Engine\(..., whet.EngineOptions\(max_num_seqs=..., memory=...\)\)"
    with pytest.warns(DeprecationWarning, match=said) as caught:
        engine = Engine(HashModel(), EngineOptions(kv="int8"), max_num_seqs=2, memory=10_000)
    assert caught[0].filename == __file__
    with engine:
        assert engine.options == EngineOptions(kv="int8", max_num_seqs=2, memory=10_000)
    with pytest.raises(TypeError, match="max_seqs"):
        Engine(HashModel(), max_seqs=2)


def test_memory_decides_how_much_runs() -> None:
    with Engine(HashModel(), EngineOptions(memory=10_000)) as engine:
        assert engine._loop.stepper.scheduler.blocks.num_blocks == 10_000 // 32
    with Engine(HashModel(), EngineOptions(max_num_seqs=2, max_model_len=30)) as engine:  # no more than can be used
        assert engine._loop.stepper.scheduler.blocks.num_blocks == 2 * 8
    draft = HashModel(block_size=8)
    with Engine(HashModel(), EngineOptions(memory=10_000), draft=draft) as engine:
        num_blocks = engine._loop.stepper.scheduler.blocks.num_blocks
        assert num_blocks == 10_000 // 64
        assert len(draft._cells) == -(-num_blocks // 2)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 12"),
        RuntimeError("unable to mmap 7612864 bytes from file: Cannot allocate memory (12)"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_too_little_memory_is_one_clear_error(error: Exception) -> None:
    class Greedy(HashModel):
        def allocate(self, room: Allocation) -> None:
            raise error

    with pytest.raises(TargetError, match="too little memory for this model"):
        Engine(Greedy())


def test_other_errors_of_a_model_are_not_called_lack_of_memory() -> None:
    class Broken(HashModel):
        def allocate(self, room: Allocation) -> None:
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        Engine(Broken())
