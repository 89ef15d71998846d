"""Training over many segments: recomputation changes no gradient, and truncation cuts where it says."""

import pytest
import torch

from ltm_models import KINDS, make, random_ids
from whet.errors import OptionError


def gradients(model, ids):
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return loss, torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("granularity", ["layer", "block"])
@pytest.mark.parametrize("kind", ["every second segment, one layer", "mlp with heads, bank"])
def test_recomputation_changes_no_gradient(kind, granularity):
    ids = random_ids(2, 8 * 9 + 4)
    plain = make(torch.float64, **KINDS[kind]).train()
    model = make(torch.float64, **KINDS[kind], gradient_checkpointing_granularity=granularity).train()
    for one, other in zip(gradients(plain, ids)[1], gradients(model, ids)[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    model.gradient_checkpointing_disable()
    assert gradients(model, ids)[0].grad_fn is not None
    with pytest.raises(OptionError, match="write layer or block"):
        model.gradient_checkpointing_enable("everything")


def kept_bytes(model, ids):
    """Return the bytes that autograd keeps from forward to backward."""
    sizes = {}

    def keep(x):
        sizes[x.untyped_storage().data_ptr()] = x
        return x

    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model.hidden(ids).sum()
    return sum(x.untyped_storage().nbytes() for place, x in sizes.items() if place not in own)


def test_blocks_keep_states_alone():
    ids = random_ids(1, 8 * 64)
    model = make().train()
    plain = kept_bytes(model, ids)
    model.gradient_checkpointing_enable("block")
    assert kept_bytes(model, ids) < plain / 5


def test_truncation_is_detaching_by_hand():
    ids = random_ids(2, 64)
    model = make(torch.float64, backpropagation_segments=3).train()
    by_hand = make(torch.float64).train()
    state, parts = by_hand.new_state(2), []
    for part in ids.split(24, 1):
        parts.append(by_hand(part, state))
        state.layers = state.detach().layers
    wanted = torch.autograd.grad(torch.cat(parts, 1).square().sum(), list(by_hand.parameters()))
    for granularity in ("none", "block"):
        if granularity == "block":
            model.gradient_checkpointing_enable()
        found = torch.autograd.grad(model(ids).square().sum(), list(model.parameters()))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    full = torch.autograd.grad(by_hand(ids).square().sum(), list(by_hand.parameters()))
    assert any(not torch.allclose(one, other, rtol=1e-3) for one, other in zip(full, wanted, strict=True))


def test_a_pair_is_recalled_beyond_the_segment():
    """A key and its value stand in the first segment; after a few steps the last one knows the value."""
    torch.manual_seed(0)
    model = make(intermediate_size=0, num_attention_heads=1, num_key_value_heads=1, memory_slots=8).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(0)
    for _ in range(80):
        ids = torch.zeros(32, 24, dtype=torch.int64)
        value = torch.randint(2, 18, (32,), generator=g)
        ids[:, 3], ids[:, -1] = value, 1
        logits = model.lm_head(model.hidden(ids)[:, -1])
        loss = torch.nn.functional.cross_entropy(logits, value)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    accuracy = float((logits.argmax(-1) == value).float().mean())
    assert accuracy > 0.9  # chance is 1/16


@pytest.mark.parametrize("kind", ["bank", "mlp with heads, bank"])
def test_memories_are_not_rounded_by_autocast(kind):
    """Only projections are: the states stay float32, and the logits near."""
    model, ids = make(**KINDS[kind]).train(), random_ids(2, 60)
    state = model.new_state(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(ids, state)
    assert all(
        tensor.dtype in (torch.float32, torch.int64)
        for layer in state.layers
        for name, tensor in layer.tensors().items()
        if not name.startswith("segment")
    )
    with torch.no_grad():
        wanted = model(ids)
    assert float((found.detach() - wanted).norm() / wanted.norm()) < 0.05
    found.float().square().mean().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_weights_in_bfloat16():
    model, ids = make(**KINDS["mlp with heads, bank"]), random_ids(2, 60)
    with torch.no_grad():
        wanted, found = model(ids), model.bfloat16()(ids)
    assert found.dtype is torch.bfloat16
    assert float((found.float() - wanted).norm() / wanted.norm()) < 0.1
