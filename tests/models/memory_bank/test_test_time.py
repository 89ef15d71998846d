"""The memory that learns while it reads, against a loop over tokens with autograd's gradients."""

import pytest
import torch
import torch.nn.functional as F

from ltm_models import make, random_ids
from whet.models.memory_bank.inference_learning import Rates, Weights, read_and_learn


def drawn(depth, T=23, N=2, C=6, seed=0, strong=False):
    """Rates that decay strongly if asked for: within a few tokens, products of decays are 0."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)  # noqa: E731
    first = draw(N, depth, C, C) * 0.5
    weights = Weights(first, first, draw(N, depth, C, C) * 0.1)
    scale = 30 if strong else 1
    rates = Rates(torch.sigmoid(draw(N, T)), F.logsigmoid(scale * draw(N, T)), F.logsigmoid(scale * draw(N, T)))
    q, k, v = draw(N, T, C), F.normalize(draw(N, T, C), dim=-1), draw(N, T, C)
    return weights, q, k, v, rates, (None if depth == 1 else 1 + 0.3 * draw(C))


def memory(matrices, x, norm):
    if norm is None:
        return x @ matrices[0]
    return x + F.layer_norm(F.gelu(x @ matrices[0]) @ matrices[1], norm.shape, norm)


def by_token(weights, q, k, v, rates, norm, clip, chunk):
    outputs, ends = [], []
    for n in range(len(q)):
        now, momentum, read = weights.now[n], weights.momentum[n], []
        for t in range(q.shape[1]):
            if t % chunk == 0:
                start = now.detach().clone().requires_grad_()
            loss = (memory(start, k[n, t], norm) - v[n, t]).square().sum()
            (gradient,) = torch.autograd.grad(loss, start)
            gradient = gradient * min(1.0, clip / max(float(gradient.norm()), 1e-300))
            momentum = rates.log_momentum[n, t].exp() * momentum - rates.step[n, t] * gradient
            now = rates.log_kept[n, t].exp() * now + momentum
            read.append(memory(now, q[n, t], norm))
        outputs.append(torch.stack(read))
        ends.append((now, momentum))
    return torch.stack(outputs), *(torch.stack(part) for part in zip(*ends, strict=True))


def by_chunk(weights, q, k, v, rates, norm, clip, chunk):
    outputs = []
    for begin in range(0, q.shape[1], chunk):
        end = min(q.shape[1], begin + chunk)
        tokens = (x[:, begin:end] for x in (q, k, v))
        weights = Weights(weights.now, weights.now, weights.momentum)
        y, weights = read_and_learn(weights, *tokens, rates.part(begin, end), norm, clip)
        outputs.append(y)
    return torch.cat(outputs, 1), weights.now, weights.momentum


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("clip", [0.3, 100.0])
@pytest.mark.parametrize("chunk", [1, 5, 16, 23])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_chunk_at_once_is_token_by_token(depth, chunk, clip, strong):
    inputs = drawn(depth, strong=strong)
    found, wanted = by_chunk(*inputs, clip, chunk), by_token(*inputs, clip, chunk)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_chunk_in_parts(depth):
    """A part goes on from the weights after the last token, with gradients at those of the chunk's start."""
    weights, q, k, v, rates, norm = drawn(depth)
    wanted, end = read_and_learn(weights, q, k, v, rates, norm, 0.5)
    outputs = []
    for first, last in ((0, 1), (1, 9), (9, 23)):
        tokens = (x[:, first:last] for x in (q, k, v))
        y, weights = read_and_learn(weights, *tokens, rates.part(first, last), norm, 0.5)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weights.now, end.now, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weights.momentum, end.momentum, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("depth", [1, 2])
def test_gradients_through_learning(depth):
    weights, q, k, v, rates, norm = drawn(depth, T=4, N=1, C=3)
    leaves = [weights.now, weights.momentum, q, k, v, rates.step, rates.log_momentum, rates.log_kept]
    leaves += [] if norm is None else [norm]
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]

    def run(now, momentum, q, k, v, step, log_momentum, log_kept, norm=None):
        given = (q, k, v, Rates(step, log_momentum, log_kept), norm, 0.5)
        y, after = read_and_learn(Weights(now, now, momentum), *given)
        return y, after.now, after.momentum

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_known_already_changes_nothing(depth):
    """A gradient of 0 stays 0, and its own gradient is a number."""
    weights, q, k, _, rates, norm = drawn(depth)
    v = torch.stack([memory(weights.start[n], k[n], norm) for n in range(2)]).requires_grad_()
    weights = Weights(weights.start, weights.start, torch.zeros_like(weights.start))
    still = Rates(rates.step, rates.log_momentum, torch.zeros_like(rates.log_kept))
    y, after = read_and_learn(weights, q, k, v, still, norm, 1.0)
    torch.testing.assert_close(after.now, weights.start, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(y.sum(), v)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_value_can_be_read_by_its_key(kind):
    """Eight unlike keys, learned one after the other, give their values again."""
    depth = 1 if kind == "linear" else 2
    weights, _, _, _, _, norm = drawn(depth, T=8, N=1, C=16)
    g = torch.Generator().manual_seed(5)
    keys = torch.linalg.qr(torch.randn(16, 16, generator=g, dtype=torch.float64))[0][None, :8]
    values = torch.randn(1, 8, 16, generator=g, dtype=torch.float64)
    rates = Rates(
        *(torch.full((1, 8), x, dtype=torch.float64) for x in ((0.5, -50.0, 0.0) if depth == 1 else (0.05, -50.0, 0.0)))
    )
    weights = Weights(weights.now * 0.1, weights.now * 0.1, torch.zeros_like(weights.now))
    for _ in range(1 if depth == 1 else 100):
        for t in range(8):
            given = (keys[:, t : t + 1], keys[:, t : t + 1], values[:, t : t + 1])
            weights = Weights(weights.now, weights.now, weights.momentum)
            _, weights = read_and_learn(weights, *given, rates.part(t, t + 1), norm, 100.0)
    found = memory(weights.now[0], keys[0], norm)
    error = float((found - values[0]).norm() / values.norm())
    assert error < (1e-6 if depth == 1 else 0.5)


def test_a_long_text_stays_finite():
    """One token 3,000 times, with the same key each time: the largest steps that there are."""
    model = make(**{"test_time_memory": "mlp", "memory_slots": 0, "test_time_chunk": 64})
    state = model.new_state()
    logits = model.step(torch.full((1, 3000), 7), state)
    assert logits.isfinite().all()
    assert all(layer.test_time.now_BHPCC.abs().max() < 1e3 for layer in state.layers)


def test_reset():
    """A new state knows nothing of what another one has learned."""
    model = make(test_time_memory="linear", memory_slots=0)
    wanted = model(random_ids(1, 9))
    state = model.new_state()
    model.step(random_ids(1, 50, seed=3), state)
    torch.testing.assert_close(model(random_ids(1, 9)), wanted, rtol=0, atol=0)
    state = model.new_state()
    torch.testing.assert_close(model(random_ids(1, 9), state), wanted, rtol=1e-6, atol=1e-6)
