"""The decoder as a whole: what a token depends on, and any division of a text into calls."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ltm_models import KINDS, make, random_ids
from whet.errors import InputsError, TargetError
from whet.models.decoder import Decoder
from whet.models.memory_bank import LtmState, load_ltm
from whet.models.memory_bank.files import weight_shapes
from whet.models.memory_bank.fresh import TRAINABLE, fresh_ltm


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_depends_on_later_ones(kind):
    model, ids = make(**KINDS[kind]), random_ids(1, 40)
    with torch.no_grad():
        wanted = model(ids)
        for place in (3, 7, 8, 20, 39):
            other = ids.clone()
            other[:, place] = (ids[:, place] + 1) % 50
            change = (model(other) - wanted).abs().amax((0, 2))
            assert float(change[:place].max()) == 0
            assert float(change[place]) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_what_reaches_beyond_a_segment(kind):
    """Token 5 is in the first segment of 8. Without memory no other segment may see it, with one the last one does."""
    model, ids = make(**KINDS[kind]), random_ids(1, 40)
    other = ids.clone()
    other[:, 5] = (ids[:, 5] + 1) % 50
    with torch.no_grad():
        change = (model(other) - model(ids)).abs().amax((0, 2))
    if kind == "no memory, no MLP":
        assert float(change[8:].max()) == 0
    else:
        assert float(change[32:].min()) > 1e-6


def test_the_bank_is_first_read_after_a_span():
    model, ids = make(**KINDS["every second segment, one layer"]), random_ids(1, 40)
    other = ids.clone()
    other[:, 5] = (ids[:, 5] + 1) % 50
    with torch.no_grad():
        change = (model(other) - model(ids)).abs().amax((0, 2))
    assert float(change[8:16].max()) == 0  # the second segment of the span
    assert float(change[16:].mean()) > 1e-3


@pytest.mark.parametrize("ratio", [1, 2])
def test_a_segment_as_long_as_the_text_is_full_attention(ratio):
    """The same weights in whet's Llama decoder give the same logits."""
    model = make(memory_slots=0, attention_block_size=32 * ratio)
    decoder = Decoder(model.config.decoder).eval()
    decoder.load_state_dict(model.state_dict())
    ids = random_ids(2, 32)
    torch.testing.assert_close(model(ids), decoder(ids), rtol=1e-5, atol=1e-5)


MODELS = {kind: make(torch.float64, **KINDS[kind]) for kind in KINDS}


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(list(KINDS)), st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 9))
def test_any_division_into_calls_is_equal(kind, counts, seed):
    model, ids = MODELS[kind], random_ids(2, sum(counts), seed)
    state = model.new_state(2)
    with torch.no_grad():
        wanted = model(ids)
        found = [model(part, state) for part in ids.split(counts, 1)]
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-9, atol=1e-9)
    assert state.num_tokens == sum(counts)


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_in_float32(kind):
    model, ids = make(**KINDS[kind]), random_ids(2, 37)
    state = model.new_state(2)
    with torch.no_grad():
        found = torch.stack([model.step(ids[:, i : i + 1], state) for i in range(37)], 1)
        torch.testing.assert_close(found, model(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_saved_copied_and_chosen(kind, tmp_path):
    model, ids = make(**KINDS[kind]), random_ids(3, 29)
    state = model.new_state(3)
    model.step(ids, state)
    state.save(tmp_path / "state.safetensors")
    saved, copy, some = LtmState.load(tmp_path / "state.safetensors"), state.clone(), state.rows([2, 0])
    token = ids[:, :1]
    logits = model.step(token, state)
    for other in (saved, copy):
        assert other.num_tokens == 29
        assert torch.equal(model.step(token, other), logits)
    torch.testing.assert_close(model.step(token[[2, 0]], some), logits[[2, 0]], rtol=1e-5, atol=1e-5)
    again = model.new_state(3)
    torch.testing.assert_close(model.step(torch.cat((ids, token), 1), again), logits, rtol=1e-5, atol=1e-5)


def test_a_state_has_a_fixed_size():
    model = make(**KINDS["mlp with heads, bank"])
    state, sizes = model.new_state(), set()
    for _ in range(5):
        model.step(random_ids(1, 16), state)
        sizes.add(state.num_bytes)
    assert len(sizes) == 1


@pytest.mark.parametrize("kind", ["bank", "linear"])
def test_states_of_other_models_are_refused(kind, tmp_path):
    model, ids = make(**KINDS[kind]), random_ids(2, 5)
    for state in (
        make(**KINDS["mlp with heads, bank"]).new_state(2),
        make(hidden_size=48).new_state(2),
        model.new_state(3),
        LtmState(model.new_state(2).layers[:1]),
        LtmState(model.new_state(2).layers, 3),  # whose keys would be three
    ):
        before = state.clone()
        with pytest.raises(InputsError, match=r"make one with model\.new_state\(2\)"):
            model(ids, state)
        assert state.num_tokens == before.num_tokens


@pytest.mark.parametrize("ids", [[0, 0, 1], [-2, 0, 1], [0.0, 1.0, 2.0]])
def test_a_state_has_each_slot_once(ids):
    model = make()
    state = model.new_state(slots=3)
    state.layers[1].bank.ids_BS = torch.tensor([ids])
    with pytest.raises(InputsError, match=r"make one with model\.new_state\(1\)"):
        model.step(random_ids(1, 2), state)


def test_files_that_are_no_states(tmp_path):
    path = tmp_path / "state.safetensors"
    state = make().new_state()
    state.save(path)
    content = path.read_bytes()
    for broken in (b"", b"not one", content[:-9]):
        path.write_bytes(broken)
        with pytest.raises(TargetError, match="cannot be read as a state"):
            LtmState.load(path)
    path.write_bytes(content.replace(b"whet ltm state 1", b"whet ltm state 9"))
    with pytest.raises(TargetError, match="is not a state that whet saved"):
        LtmState.load(path)
    path.write_bytes(content.replace(b"layers.1.bank.ages_BS", b"layers.1.bank.agas_BS"))
    with pytest.raises(TargetError, match="agas_BS"):
        LtmState.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_written_and_loaded(kind, tmp_path):
    config = make(**KINDS[kind]).config
    model = fresh_ltm(config, torch.Generator().manual_seed(3))
    assert torch.equal(
        model.embed_tokens.weight, fresh_ltm(config, torch.Generator().manual_seed(3)).embed_tokens.weight
    )
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == weight_shapes(config)
    TRAINABLE.write(config, tmp_path, {"model_type": "ltm"}, model.state_dict(), {"eos_token_id": 0})
    loaded, ids = load_ltm(tmp_path), random_ids(1, 20)
    assert loaded.config == config
    assert torch.equal(loaded(ids), model(ids))
