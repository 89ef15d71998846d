"""The native decoder with long-term memory against the readable one, and against itself."""

from typing import Any

import pytest
import torch
from driving import make_request, make_stepper, outputs
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_output
from torch import Tensor

from native_steps import Read, assert_cuts_do_not_show, assert_drafts_do_not_show, read
from whet.errors import InputsError
from whet.kernels.build import Isa, library, supported
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind, large_pages
from whet.models.memory_bank import Ltm, LtmConfig, LtmState, native_states
from whet.models.memory_bank.native import NativeLtm
from whet.models.step import Allocation
from whet.server.sampling_params import SamplingParams

CONFIGS: dict[str, dict[str, Any]] = {
    "bank": {"memory_slots": 5, "min_memory_slots": 2, "max_memory_slots": 20},
    "narrow bank, long spans": {"memory_slots": 18, "memory_compression_ratio": 0.4, "memory_update_interval": 2},
    "linear": {"memory_slots": 0, "test_time_memory": "linear", "test_time_chunk": 7},
    "bank and MLP": {"memory_slots": 3, "test_time_memory": "mlp", "test_time_heads": 2, "memory_layers": (1,)},
    "without MLP and memories": {"memory_slots": 0, "intermediate_size": 0},
}


def readable(name: str, **changes: Any) -> Ltm:
    sizes = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "attention_block_size": 24,
    }
    torch.manual_seed(0)
    model = Ltm(LtmConfig.model_validate({**sizes, **CONFIGS[name], **changes})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def native(model: Ltm, kind: Kind = Kind.F32, isa: Isa | None = None, kv: Kv = Kv.F32, **room: int) -> NativeLtm:
    weights = {key: value.detach() for key, value in model.state_dict().items()}
    made = NativeLtm(model.config, weights, library(isa), kind=kind, kv=kv)
    made.allocate(Allocation(**{"num_states": 4, **room}))
    return made


def run(model: NativeLtm, ids: Tensor, begin: int = 0, row: int = 0) -> Tensor:
    return read(model, [Read(ids, begin, row, begin + len(ids))])[0]


def random_ids(num: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 97, (num,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_is_the_readable_model(name: str) -> None:
    model, ids = readable(name), random_ids(450)  # three parts of a long step
    with torch.no_grad():
        wanted = model(ids[None])[0]
    assert wanted.std() > 0.3
    torch.testing.assert_close(run(native(model), ids, row=2), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("name", ["narrow bank, long spans", "bank and MLP"])
def test_every_build_computes_the_same(isa: Isa, name: str) -> None:
    model, ids = readable(name), random_ids(120)
    with torch.no_grad():
        wanted = model(ids[None])[0]
    kinds = ((Kind.F32, Kv.F32, 1e-4), (Kind.BF16, Kv.BF16, 0.05), (Kind.S8, Kv.S8, 0.1), (Kind.S4, Kv.F32, 0.5))
    for kind, kv, tolerance in kinds:
        found = run(native(model, kind, isa, kv), ids)
        assert (found - wanted).norm() / wanted.norm() < tolerance, kind


@pytest.mark.parametrize("kind", [Kind.F32, Kind.S8])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_shares_a_step_and_how_it_is_cut_does_not_show(name: str, kind: Kind) -> None:
    model = native(readable(name), kind)
    texts = [random_ids(num, seed) for seed, num in enumerate((260, 33, 70))]
    alone = [run(model, ids, row=3) for ids in texts]

    @settings(max_examples=8)
    @given(data=st.data())
    def cut_at_random(data: st.DataObject) -> None:
        rows = data.draw(st.permutations(range(4)))

        def step(parts: list[tuple[int, int, int]]) -> list[Tensor]:
            return read(model, [Read(texts[i][begin:end], begin, rows[i], end) for i, begin, end in parts])

        assert_cuts_do_not_show(data, texts, alone, step, (1, 2, 15, 24, 40, 99, 230))

    cut_at_random()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_drafts", [1, 5, 60])
def test_drafts_leave_nothing_behind(name: str, num_drafts: int) -> None:
    model = native(readable(name), num_drafts=num_drafts, num_states=3)
    texts = [random_ids(num, seed) for seed, num in enumerate((260, 60, 12))]
    alone = [run(model, ids) for ids in texts]

    @settings(max_examples=8)
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        assert_drafts_do_not_show(data, texts, alone, lambda reads: read(model, reads), num_drafts)

    drawn()


@pytest.mark.parametrize("name", ["linear", "bank and MLP"])
def test_drafts_at_the_end_of_a_part_follow_the_token_before_them(name: str) -> None:
    """A part has 192 tokens. The other sequence leaves room for the settled token and one of its four drafts."""
    model = native(readable(name), num_drafts=4)
    ids, other = random_ids(45), random_ids(190, 5)
    wanted = run(model, ids)[40:]
    for _ in range(20):  # what runs side by side need not differ at once
        run(model, ids[:40], row=1)
        found = read(model, [Read(other, 0, 2, 190), Read(ids[40:], 40, 1, 41)])[1]
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("kv", Kv)
def test_a_copy_is_the_settled_state(kv: Kv) -> None:
    model = native(readable("bank and MLP"), kv=kv, num_snapshots=2, num_drafts=4)
    ids, other = random_ids(60), random_ids(60, 5)
    wanted = run(model, ids)
    read(model, [Read(ids[:40], 0, 1, 37), Read(other[:40], 0, 3, 40)])
    model.copy_state(1, 5)
    run(model, other, row=1)
    for target in (3, 1):
        model.copy_state(5, target)
        assert torch.equal(run(model, ids[37:], 37, target), wanted[37:])
    model.copy_state(5, 4)
    model.copy_state(4, 0)
    assert torch.equal(run(model, ids[37:], 37), wanted[37:])


@pytest.mark.parametrize("name", CONFIGS)
def test_states_pass_between_native_and_readable_models(tmp_path: Any, name: str) -> None:
    readable_model, ids = readable(name), random_ids(90)
    model, state = native(readable_model), readable_model.new_state()
    wanted = run(model, ids, row=1)
    run(model, ids[:70], row=2)
    kept = model.read_state(2, 70)
    readable_model.step(ids[None, :70], state)
    for one, other in zip(kept.layers, state.layers, strict=True):
        for key, value in other.tensors().items():
            torch.testing.assert_close(one.tensors()[key], value, atol=1e-4, rtol=1e-4)
    kept.save(tmp_path / "state.safetensors")
    other_model = native(readable_model)
    other_model.write_state(3, LtmState.load(tmp_path / "state.safetensors"))
    assert torch.equal(run(other_model, ids[70:], 70, 3), wanted[70:])
    logits = readable_model.step(ids[None, 70:], kept)
    torch.testing.assert_close(logits[0], wanted[-1], atol=1e-4, rtol=1e-4)
    with pytest.raises(InputsError, match="the state is not one of 1 sequences"):
        model.write_state(0, readable_model.new_state(2))
    with pytest.raises(InputsError, match="row 1 holds the state after 90 tokens, not after 89"):
        model.read_state(1, 89)


def test_a_bank_with_fewer_slots_goes_on() -> None:
    readable_model, ids = readable("bank"), random_ids(120)
    model, state = native(readable_model), readable_model.new_state()
    readable_model.grow_memory_slots(state, 18)
    readable_model.step(ids[None, :50], state)
    readable_model.reduce_memory_slots(state, 7)
    model.write_state(1, state)
    with torch.no_grad():
        wanted = readable_model(ids[None, 50:], state)[0]
    torch.testing.assert_close(run(model, ids[50:], 50, 1), wanted, atol=1e-4, rtol=1e-4)
    assert readable_model.get_memory_stats(model.read_state(1, 120))["slots"] == 7


def test_adaptive_compression_is_that_of_the_readable_model() -> None:
    readable_model = readable("bank", use_adaptive_compression=True, compression_tolerance=0.6)
    model, texts = native(readable_model), [random_ids(200), random_ids(90, 2)]
    assert not model.can_rewind
    states = [readable_model.new_state() for _ in texts]
    with torch.no_grad():
        wanted = [readable_model(ids[None], state)[0] for ids, state in zip(texts, states, strict=True)]
    found = read(model, [Read(ids, 0, row, len(ids)) for row, ids in enumerate(texts)])
    for row, (one, other, ids) in enumerate(zip(found, wanted, texts, strict=True)):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one, readable_model(ids[None])[0].detach(), atol=1e-4, rtol=1e-4)
        slots = [bank.ids_BS.shape[1] for bank in model.read_state(row, len(ids)).banks]
        assert slots == [bank.ids_BS.shape[1] for bank in states[row].banks]
    assert any(bank.ids_BS.shape[1] != 5 for state in states for bank in state.banks)


def test_a_row_that_is_used_again_begins_anew() -> None:
    model, ids, other = native(readable("bank and MLP")), random_ids(60), random_ids(60, 5)
    wanted = run(model, ids, row=1)
    run(model, other, row=1)
    first = run(model, ids[:1], row=1)
    assert torch.equal(torch.cat((first, run(model, ids[1:], 1, 1))), wanted)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_do_not_show(num_threads: int) -> None:
    model, ids = readable("bank and MLP"), random_ids(100)
    wanted = run(native(model), ids)
    try:
        library().set_threads(num_threads)
        assert torch.equal(run(native(model), ids), wanted)
    finally:
        library().set_threads(torch.get_num_threads())


def test_an_engine_serves_it() -> None:
    """Many requests in shared steps, in chunks, give the tokens of each alone."""
    model, params = native(readable("bank and MLP")), SamplingParams(temperature=0.8, seed=3, max_tokens=10)
    prompts = [random_ids(length, length).tolist() for length in (1, 4, 50, 40, 17, 2)]
    alone = native(readable("bank and MLP"))
    expected = [naive_output(lambda tokens: run(alone, torch.tensor(tokens))[-1], p, params) for p in prompts]
    stepper = make_stepper(model, max_num_seqs=4, max_batch_tokens=7)
    done = outputs(stepper, [make_request(prompt, params) for prompt in prompts])
    assert [one.token_ids for one in done] == expected


@pytest.mark.parametrize("num_drafts", [0, 1, 4])
def test_drafts_take_the_memory_that_the_model_says(num_drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(num_bytes: int) -> Tensor:
        asked.append(num_bytes)
        return large_pages(num_bytes)

    model = native(readable("bank and MLP"))
    monkeypatch.setattr(native_states, "large_pages", counted)
    model.allocate(Allocation(num_states=3))
    without, _ = asked
    asked.clear()
    model.allocate(Allocation(num_states=3, num_drafts=num_drafts))
    more = num_drafts * model.bytes_per_draft + (model.bytes_to_rewind if num_drafts else 0)
    assert asked[0] - without == 3 * more
