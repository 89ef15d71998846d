"""engine.memory: what a model with long-term memory remembers of a text is read, saved, loaded, gone on from, shown."""

import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import Run, make_request, make_stepper
from families_served import FAMILIES, VOCAB, _ltm, _native_ltm, logits_after
from naive import naive_output

from whet.errors import EngineClosed, RequestError, TargetError
from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.kernels.paged_attention.native import Kv
from whet.models.memory_bank import LtmState
from whet.models.memory_bank.native import NativeLtm
from whet.models.memory_bank.rows import RowsOfLtmStates
from whet.models.step import ServedModel
from whet.server.beginnings import UNREAD, Beginning, beginning
from whet.server.completion import Delta, join
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams

DRAWN = SamplingParams(temperature=0.8, seed=3, max_tokens=10)
KINDS: dict[str, Callable[[], ServedModel]] = {
    "native": _native_ltm,
    "native, bank": lambda: _native_ltm(test_time_memory="none", memory_update_interval=2),
    "native, adaptive": lambda: _native_ltm(
        test_time_memory="none", min_memory_slots=2, use_adaptive_compression=True, compression_tolerance=0.6
    ),
    "native, bf16": lambda: _native_ltm(Kind.BF16, Kv.BF16),
    "torch": FAMILIES["ltm in torch"],
}


def ids(count: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(count)]


def engine_of(model: ServedModel, **options: Any) -> Engine:
    sizes = {"max_num_seqs": 4, "max_batch_tokens": 16, "memory": 10**7, "max_model_len": 2000}
    return Engine(model, EngineOptions(**{**sizes, **options}))


@pytest.mark.parametrize("speculation", ["off", "ngram"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_loaded_state_is_what_follows_the_text(kind: str, speculation: str, tmp_path: Path) -> None:
    """The state is read in one engine and loaded in another. Its text ends within a segment and at an end of one."""
    model = KINDS[kind]()
    speculation = speculation if model.can_rewind else "off"
    with engine_of(model, speculation=speculation) as first, engine_of(KINDS[kind](), speculation=speculation) as other:
        for count, rest in ((41, [*ids(3, 2), *[7, 8] * 6]), (48, ids(1, 3))):
            wanted = first.generate(ids(count) + rest, DRAWN).token_ids
            state = first.memory.read(ids(count))
            assert (state.num_tokens, state.batch_size) == (count, 1)
            state.save(tmp_path / "state")
            loaded = other.memory.load(tmp_path / "state")
            for engine in (first, other):
                done = engine.generate([rest, rest], DRAWN, state=loaded)
                assert [one.token_ids for one in done] == [wanted, wanted]
                assert done[0].num_prompt_tokens == count + len(rest)
            further = other.memory.read(rest[:1], state=loaded)
            assert other.generate(rest[1:] or wanted[:1], DRAWN, state=further).num_cached_tokens >= count + 1


@pytest.mark.parametrize("kind", [name for name in KINDS if "bf16" not in name])
def test_engine_and_module_go_on_from_each_others_states(kind: str, tmp_path: Path) -> None:
    model = KINDS[kind]()
    module = model.model if isinstance(model, RowsOfLtmStates) else _ltm(**_changes(model))
    text, rest = ids(41), ids(20, 2)
    state = module.new_state()
    module.step(torch.tensor([text]), state)
    state.save(tmp_path / "module")
    with engine_of(model) as engine:
        engine.memory.read(text).save(tmp_path / "engine")
        found = engine.generate(
            rest, SamplingParams(temperature=0, max_tokens=8), state=engine.memory.load(tmp_path / "module")
        )
    logits = module.step(torch.tensor([rest]), state)
    from_engine = LtmState.load(tmp_path / "engine")
    assert from_engine.model == state.model != ""
    torch.testing.assert_close(module.step(torch.tensor([rest]), from_engine), logits, atol=1e-4, rtol=1e-4)
    tokens = []
    for _ in range(8):
        tokens.append(int(logits.argmax()))
        logits = module.step(torch.tensor([tokens[-1:]]), state)
    assert found.token_ids == tokens


def _changes(model: Any) -> dict[str, Any]:
    return model.config.model_dump(exclude_unset=True)


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_a_preempted_request_goes_on_from_its_state_and_shares_snapshots(kind: str) -> None:
    text, rest, params = ids(21), ids(30, 2), SamplingParams(temperature=0.8, seed=3, max_tokens=20)
    wanted = naive_output(logits_after(KINDS[kind]), [*text, *rest], params)
    source = engine_of(KINDS[kind]())
    state = source.memory.read(text)
    source.close()
    stepper = make_stepper(KINDS[kind](), max_batch_tokens=9, num_snapshots=7, num_drafts=0)
    start = beginning(stepper.model, state)
    other = beginning(stepper.model, _changed(state))
    run = Run(stepper)
    requests = [_begun(start, rest, params) for _ in range(3)]
    run.add(requests[0], _begun(other, rest, params))
    for _ in range(14):
        run.step()
        if run.num_steps in (1, 9):
            stepper.scheduler.preempt(requests[0])
    run.until_done()
    run.add(*requests[1:])
    done = run.until_done()
    assert requests[0].num_preemptions == 2
    assert [done[request.id].token_ids for request in requests] == [wanted] * 3
    assert [request.num_cached for request in requests] == [21, 48, 48]  # and not that of the other state
    assert _begun(other, rest, params).num_before == 21


def _begun(start: Beginning, rest: list[int], params: SamplingParams) -> Any:
    request = make_request([UNREAD] * start.num_tokens + rest, params)
    request.beginning = start
    return request


def _changed(state: LtmState) -> LtmState:
    return state.changed(lambda tensor: tensor * 0.5 if tensor.is_floating_point() else tensor)


def test_penalties_count_what_the_engine_has_seen() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, repetition_penalty=5.0, frequency_penalty=1.0)
    after = logits_after(_native_ltm)
    wanted = naive_output(lambda tokens: after([*ids(30), *tokens]), [3, 4], params)
    with engine_of(_native_ltm()) as engine:
        state = engine.memory.read(ids(30))
        others = [engine.stream([9], SamplingParams(max_tokens=40), state=state) for _ in range(2)]
        assert engine.generate([3, 4], params, state=state).token_ids == wanted
        assert all(len(list(stream)) for stream in others)


def test_statistics_of_a_running_request_and_of_a_state() -> None:
    with engine_of(_native_ltm()) as engine:
        state = engine.memory.read(ids(60))
        stats = engine.memory.stats(state)
        module = _ltm()
        own = module.new_state()
        module.step(torch.tensor([ids(60)]), own)
        wanted = module.get_memory_stats(own)
        for name in ("slots", "written", "utilization", "mean_age", "num_tokens"):
            assert stats[name] == pytest.approx(wanted[name], abs=1e-4)
        stream = engine.stream(ids(5), SamplingParams(max_tokens=1900, ignore_eos=True), state=state)
        next(stream)
        running = engine.memory.stats(stream.request_id)
        assert 65 <= running["num_tokens"] < 2000
        assert running["slots"] == 4
        stream.close()
        with pytest.raises(RequestError, match="no request nobody is running"):
            engine.memory.stats("nobody")
        refused: list[Exception] = []

        def looks(delta: Any) -> None:
            try:
                engine.memory.stats(delta.request_id)
            except RequestError as error:
                refused.append(error)

        engine.submit(ids(3), SamplingParams(max_tokens=1), on_delta=looks, request_id="own")
        engine.generate(ids(3))
        assert "own thread" in str(refused[0])
    with pytest.raises(EngineClosed):
        engine.memory.stats("nobody")


@pytest.mark.parametrize("name", ["llama", "mamba2", "lfm2", "hashes"])
def test_other_families_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with engine_of(FAMILIES[name](), max_model_len=None) as engine:
        kind = type(engine.model).__name__
        for call in (
            lambda: engine.memory.read([1, 2]),
            lambda: engine.memory.load(tmp_path / "none"),
            lambda: engine.memory.stats("x"),
            lambda: engine.generate([1], state=_ltm().new_state()),
        ):
            with pytest.raises(RequestError, match=f"{kind} keeps no state"):
                call()
        assert len(engine.generate([1, 2]).token_ids) == 16


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with engine_of(_native_ltm(), max_model_len=50) as engine:
        state = engine.memory.read(ids(40))
        path = tmp_path / "state"
        other = _ltm()
        with torch.no_grad():
            other.layers[0].self_attn.q_proj.weight.add_(0.1)
        foreign = other.new_state()
        other.step(torch.tensor([ids(5)]), foreign)
        foreign.save(path)
        with pytest.raises(TargetError, match=r"state: the state was made by another model"):
            engine.memory.load(path)
        nan = state.changed(lambda x: x * float("nan") if x.is_floating_point() else x)
        several = _ltm().new_state(2)
        _ltm().step(torch.tensor([[1], [2]]), several)
        for wrong, message in (
            (foreign, "another model"),
            (nan, "holds NaN"),
            (several, "not one of 1 sequences"),
            (_ltm().new_state(), "has read no tokens"),
            ("state", "state is a str"),
        ):
            with pytest.raises(RequestError, match=message):
                engine.generate([1], state=wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="takes 50 tokens, and this asks for 42 in the prompt and 9"):
            engine.generate([1, 2], SamplingParams(max_tokens=9), state=state)
        with pytest.raises(RequestError, match="has no log-probabilities"):
            engine.generate([1, 2], SamplingParams(prompt_logprobs=1), state=state)
        state.save(path)
        whole = path.read_bytes()
        for damaged in (whole[:-100], b"", whole.replace(b"layers.1.bank", b"layers.9.bank")):
            path.write_bytes(damaged)
            with pytest.raises(TargetError, match="cannot be read as a state"):
                engine.memory.load(path)
        assert len(engine.generate([1, 2], SamplingParams(max_tokens=4), state=state).token_ids) == 4


def test_a_caller_may_change_a_state_that_a_request_begins_at() -> None:
    with engine_of(_native_ltm()) as engine:
        state = engine.memory.read(ids(30))
        wanted = engine.generate([1, 2], DRAWN, state=state).token_ids
        stream = engine.stream([1, 2], DRAWN, state=state)
        for layer in state.layers:
            for tensor in layer.tensors().values():
                tensor.zero_()
        state.layers.clear()
        assert [token for delta in stream for token in delta.token_ids] == wanted


def test_a_callback_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(state: LtmState) -> None:
        raise ValueError(str(state.num_tokens))

    with engine_of(_native_ltm()) as engine:
        ended: list[Delta] = []
        engine.submit(ids(5), DRAWN, on_delta=ended.append, on_state=fails, request_id="failing")
        wanted = engine.generate(ids(5), DRAWN).token_ids
        engine.drain(10)
    assert join(ended).token_ids == wanted
    assert "the state of request failing could not be given away" in caplog.text


def test_an_engine_that_nobody_holds_ends() -> None:
    engine = engine_of(_native_ltm())
    engine.memory.stats(engine.memory.read(ids(5)))
    held = weakref.ref(engine)
    del engine
    assert held() is None


def test_a_drafting_model_leaves_out_what_it_has_not_read() -> None:
    model, draft = _native_ltm(), _native_ltm()
    with Engine(model, EngineOptions(max_num_seqs=2, memory=10**7), draft=draft) as engine:
        whole = engine.generate(ids(40), DRAWN).token_ids
        drafted = engine.stats().num_draft_tokens
        assert engine.generate(ids(40)[33:], DRAWN, state=engine.memory.read(ids(40)[:33])).token_ids == whole
        assert engine.stats().num_draft_tokens == drafted > 0


def test_a_digest_is_of_the_weights_and_not_of_their_format() -> None:
    model = _ltm()
    wide = RowsOfLtmStates(model).digest
    weights = {name: weight.detach().bfloat16() for name, weight in model.state_dict().items()}
    narrow = NativeLtm(model.config, weights, library(), kind=Kind.S8, kv=Kv.S8)
    assert narrow.digest == wide != RowsOfLtmStates(_ltm(attention_block_size=24)).digest
