"""What comes out of rejection sampling is distributed as the model's own samples."""

import numpy as np
import pytest
import torch
from scipy import stats

from whet.server.rejection import inverse, verify

P = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
N = 20_000


def first_tokens(p: torch.Tensor, q: torch.Tensor, count: int, seed: int = 0) -> np.ndarray:
    """How often each token comes first, over drafts drawn from q."""
    draw = np.random.default_rng(seed)
    found = np.zeros(len(p))
    for draft in draw.choice(len(q), size=count, p=q.numpy()).tolist():
        accept, residual = draw.random(2).tolist()
        found[verify(p[None], q[None], [draft], [accept], [residual])[0]] += 1
    return found


@pytest.mark.parametrize(("p", "q"), [(P, Q), (Q, P), (P, P)], ids=["p over q", "q over p", "equal"])
def test_chi_square(p: torch.Tensor, q: torch.Tensor) -> None:
    found = first_tokens(p, q, N)
    possible = p.numpy() > 0
    assert found[~possible].sum() == 0
    assert stats.chisquare(found[possible], p.numpy()[possible] * N).pvalue > 1e-3


def test_chi_square_sees_a_wrong_rule() -> None:
    """Accepting every draft is what a broken rule would do."""
    draw = np.random.default_rng(0)
    found = np.bincount(draw.choice(4, size=N, p=Q.numpy()), minlength=4)
    assert stats.chisquare(found[[0, 2, 3]], P.numpy()[[0, 2, 3]] * found[[0, 2, 3]].sum()).pvalue < 1e-9


def test_the_distance_shrinks_with_samples() -> None:
    distances = [abs(first_tokens(P, Q, n, seed=1) / n - P.numpy()).sum() / 2 for n in (100, 20_000)]
    assert distances[1] < 0.02
    assert distances[1] < distances[0]


def test_accepted_as_often_as_the_distributions_overlap() -> None:
    draw = np.random.default_rng(2)
    drafts = draw.choice(4, size=5000, p=Q.numpy()).tolist()
    kept = sum(verify(P[None], Q[None], [d], [draw.random()], [draw.random()]) == [d] for d in drafts)
    overlap = float(torch.minimum(P, Q).sum())
    assert kept / 5000 == pytest.approx(overlap, abs=0.03)


def test_several_drafts_end_at_the_first_refused() -> None:
    p = torch.stack([P, P, P])
    q = torch.stack([Q, Q, Q])
    assert verify(p, q, [0, 2, 3], [0.99, 0.99, 0.99], [0, 0, 0]) == [0, 2, 3]
    assert verify(p, q, [0, 1, 3], [0.99, 0.0, 0.99], [0, 0.5, 0]) == [0, 0]  # the residual is all on token 0


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.24, 1), (0.26, 3), (0.999999, 3)])
def test_inverse(number: float, token: int) -> None:
    assert inverse(torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0]), number) == token
