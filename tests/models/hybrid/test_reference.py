"""Hybrid models against transformers, whose full forward passes and single steps are right."""

import pytest
import torch

from hybrid_models import FIRST, VARIANTS, loss_gradients, saved
from whet.errors import InputsError, TargetError
from whet.models.hybrid import Hybrid, load_hybrid, read_config
from whet.models.hybrid.files import file_name, to_files
from whet.models.hybrid.state import HybridState


def in_files(name, tensors):
    """Return tensors of a module of transformers by their names in files: Nemotron-H's have another prefix there."""
    if name != "nemotron_h":
        return tensors
    return {key.replace("model.", "backbone.", 1): value for key, value in tensors.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_transformers(tmp_path, name):
    theirs = saved(tmp_path, name, "20KB" if "biases" in name else "5GB")
    ours, ids = load_hybrid(tmp_path), torch.randint(97, (3, 50))
    with torch.no_grad():
        wanted = theirs(ids, use_cache=False).logits
        assert wanted.std() > 0.2
        torch.testing.assert_close(ours(ids), wanted, rtol=0, atol=1e-4)
        state = ours.new_state(3)
        first = ours(ids[:, :33], state)
        rest = [ours.step(part, state) for part in ids[:, 33:].split([1, 2, 14], 1)]
    torch.testing.assert_close(first, wanted[:, :33], rtol=0, atol=1e-4)
    for end, logits in zip((34, 36, 50), rest, strict=True):
        torch.testing.assert_close(logits, wanted[:, end - 1], rtol=0, atol=1e-4)
    assert state.num_tokens == 50


@pytest.mark.parametrize("name", FIRST)
def test_single_steps_equal_those_of_transformers(tmp_path, name):
    """Greedy tokens, with both caches; Bamba's cached forward does not count positions by itself."""
    theirs = saved(tmp_path, name)
    ours, tokens = load_hybrid(tmp_path), torch.randint(97, (2, 9))
    with torch.no_grad():
        state, cache = ours.new_state(2), None
        for _ in range(12):
            positions = torch.arange(state.num_tokens, state.num_tokens + tokens.shape[1])[None]
            logits = ours.step(tokens, state)
            output = theirs(tokens, cache=cache, use_cache=True, position_ids=positions)
            cache = output.cache
            torch.testing.assert_close(logits, output.logits[:, -1], rtol=0, atol=1e-4)
            tokens = logits.argmax(-1, keepdim=True)


@pytest.mark.parametrize("name", FIRST)
def test_a_saved_state_goes_on_as_the_one_in_memory(tmp_path, name):
    saved(tmp_path, name)
    model, ids = load_hybrid(tmp_path), torch.randint(97, (2, 30))
    state = model.new_state(2)
    model.step(ids[:, :20], state)
    state.save(tmp_path / "state")
    again = HybridState.load(tmp_path / "state")
    assert (again.num_tokens, again.num_bytes) == (20, state.num_bytes)
    assert torch.equal(model.step(ids[:, 20:], again), model.step(ids[:, 20:], state))
    state.num_tokens += 1
    assert any(layer.keys_BKTH is not None for layer in state.layers)
    with pytest.raises(InputsError, match="is not one of 2 sequences"):
        model.step(ids[:, :1], state)
    (tmp_path / "damaged").write_bytes((tmp_path / "state").read_bytes()[:-9])
    with pytest.raises(TargetError, match="cannot be read as a state"):
        HybridState.load(tmp_path / "damaged")


@pytest.mark.parametrize("name", FIRST)
def test_gradients_are_those_of_transformers(tmp_path, name):
    theirs = saved(tmp_path, name)
    ids = torch.randint(1, 97, (2, 40))  # without 0, by which transformers pads: it gives its embedding no gradient
    ours = load_hybrid(tmp_path)
    wanted = in_files(name, loss_gradients(theirs, theirs(ids, use_cache=False).logits, ids))
    found = to_files(ours.config, loss_gradients(ours, ours(ids), ids))
    assert found.keys() == wanted.keys()
    for key, gradient in found.items():
        error = float((gradient - wanted[key]).norm())
        assert error < 1e-3 * float(wanted[key].norm()), key


@pytest.mark.parametrize("name", FIRST)
def test_weights_are_written_as_they_were_read(tmp_path, name):
    theirs = saved(tmp_path, name)
    ours = load_hybrid(tmp_path)
    written = to_files(ours.config, ours.state_dict())
    wanted = {key: value for key, value in in_files(name, theirs.state_dict()).items() if key in written}
    assert all(torch.equal(written[key], value) for key, value in wanted.items())
    assert written.keys() == wanted.keys()
    assert file_name(ours.config.model_type, "lm_head.weight") == "lm_head.weight"


@pytest.mark.parametrize("name", FIRST)
def test_half_as_wide_matrices(tmp_path, name):
    saved(tmp_path, name)
    wide, model = load_hybrid(tmp_path), load_hybrid(tmp_path, torch.bfloat16)
    types = {key: weight.dtype for key, weight in model.named_parameters()}
    assert types[next(key for key in types if key.endswith("mlp.up_proj.weight"))] is torch.bfloat16
    assert types["layers.0.input_layernorm.weight"] is types["norm.weight"] is torch.float32
    ids = torch.randint(97, (2, 30))
    with torch.no_grad():
        wanted, state = wide(ids), model.new_state(2)
        error = model(ids).float() - wanted
        assert error.square().mean() < 1e-3 * wanted.square().mean()
        assert (model.step(ids, state).float() - wanted[:, -1]).square().mean() < 2e-3 * wanted.square().mean()


def test_a_copied_state_goes_on_by_itself(tmp_path):
    saved(tmp_path, "falcon_h1")
    model, ids = load_hybrid(tmp_path), torch.randint(97, (2, 20))
    state = model.new_state(2)
    model.step(ids[:, :12], state)
    kept, num_bytes = state.copy(), state.num_bytes
    wanted = model.step(ids[:, 12:], state)
    assert (kept.num_tokens, kept.num_bytes) == (12, num_bytes)
    assert torch.equal(model.step(ids[:, 12:], kept), wanted)
    assert state.num_bytes > num_bytes


def test_a_state_that_does_not_fit_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    saved(tmp_path / "a", "bamba")
    saved(tmp_path, "lfm2")
    model, other, ids = load_hybrid(tmp_path), load_hybrid(tmp_path / "a"), torch.zeros(2, 3, dtype=torch.int64)
    for wrong in (other.new_state(2), model.new_state(1)):
        with pytest.raises(InputsError, match=r"not one of 2 sequences .*new_state\(batch_size=2\)"):
            model.step(ids, wrong)


@pytest.mark.parametrize("name", FIRST)
def test_new_weights_can_be_trained(tmp_path, name):
    saved(tmp_path, name)
    torch.manual_seed(0)
    model, ids = Hybrid(read_config(tmp_path)), torch.randint(97, (4, 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
