"""Agreement of outputs, against figures by hand and by numpy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.core.workload import Workload, examine
from whet.errors import TargetError
from whet.tuner.agreement import agree
from whet.tuner.result import Agreement


def compared(original: list[Tensor], variant: list[Tensor]) -> Agreement:
    """Of a model with one output, one batch an entry."""
    answers = iter(variant)
    examined = SimpleNamespace(outputs=[(y,) for y in original], flat_calibration=[() for _ in original])
    return agree(examined, lambda: (next(answers),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shapes", [[(4, 8), (4, 8)], [(32,), (32,), (4,)], [(2, 5), (2, 9)], [(1, 3, 4, 6), (1, 3, 4, 2)]]
)
def test_batches_of_any_sizes_against_numpy(shapes: list[tuple[int, ...]]) -> None:
    original = [torch.randn(shape) for shape in shapes]
    variant = [y + 0.1 * torch.randn(y.shape) for y in original]
    found = compared(original, variant)
    a, b = (np.concatenate([y.double().numpy().ravel() for y in ys]) for ys in (original, variant))
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-9)
    assert found.relative_error == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a), rel=1e-9)
    assert found.distance == pytest.approx(0.5 * np.square(a - b).mean() / a.var(), rel=1e-9)
    tops = [(x.argmax(-1) == y.argmax(-1)).double().reshape(-1) for x, y in zip(original, variant, strict=True)]
    assert found.top1 == pytest.approx(float(torch.cat(tops).mean()))


@given(st.integers(0, 10**6), st.floats(1e-3, 0.05))
def test_around_zero_the_distance_is_what_the_cosine_lacks(seed: int, noise: float) -> None:
    random = torch.Generator().manual_seed(seed)
    a = torch.randn(64, 64, generator=random)
    found = compared([a], [a + noise * torch.randn(64, 64, generator=random)])
    assert found.distance == pytest.approx(1 - found.cosine, rel=0.1)


def test_what_a_cosine_does_not_see() -> None:
    a = 100 + torch.randn(50, 20)
    flat = compared([a], [torch.full_like(a, 100.0)])
    twice = compared([a], [2 * a])
    assert min(flat.cosine, twice.cosine) > 0.99
    assert flat.distance == pytest.approx(0.5, rel=0.01)
    assert twice.distance is not None
    assert twice.distance > 1


def test_whole_numbers_count_by_how_many_differ() -> None:
    ids = torch.arange(1000, 1100)
    other = ids.clone()
    other[:5] += 1
    assert compared([ids], [other]).distance == pytest.approx(0.05)
    assert compared([ids > 1050], [ids > 1050]).distance == 0.0


def test_a_constant_output_is_judged_by_its_size() -> None:
    a = torch.full((3, 4), 2.0)
    assert compared([a], [a + 0.02]).distance == pytest.approx(0.5 * 0.01**2, rel=1e-3)
    zero = torch.zeros(3)
    assert compared([zero], [zero]).distance == 0.0
    assert compared([zero], [zero + 1e-3]).distance == 1.0


def test_another_shape_is_no_agreement() -> None:
    with pytest.raises(TargetError, match=r"float32\[4, 2\], the original float32\[2, 4\]"):
        compared([torch.ones(2, 4)], [torch.ones(4, 2)])
    with pytest.raises(TargetError, match="float32"):
        compared([torch.ones(2, dtype=torch.complex64)], [torch.ones(2)])


def test_complex_values_are_pairs_of_real_ones() -> None:
    a = torch.randn(8, 16, dtype=torch.complex64)
    near, turned = compared([a], [a * (1 + 1e-6)]), compared([a], [a.conj()])
    assert near.distance == pytest.approx(0.5e-12, rel=0.2)
    assert turned.distance is not None
    assert turned.distance > 0.5  # only the imaginary parts differ


def test_infinities_and_nan_are_compared_by_place() -> None:
    odd = torch.tensor([[1.0, -torch.inf, 3.0], [torch.nan, torch.inf, 0.5]])
    examined = examine(Workload(model=_Returning(odd), inputs=[torch.ones(1)]))
    same = agree(examined, lambda x: (odd.clone(),))
    assert (same.distance, same.relative_error) == (0.0, 0.0)
    near = agree(examined, lambda x: (odd * 1.001,))
    assert near.relative_error == pytest.approx(1e-3, rel=1e-3)
    moved = [
        torch.nan_to_num(odd, nan=torch.nan, posinf=torch.inf, neginf=-1e9),
        torch.nan_to_num(odd, posinf=torch.inf),
    ]
    moved += [torch.where(odd == 1, torch.inf, odd), -odd, torch.where(odd.isnan(), torch.inf, odd)]
    for wrong in moved:
        found = agree(examined, lambda x, wrong=wrong: (wrong,))
        assert found.distance is None and found.relative_error is None


class _Returning(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value.clone()
