"""The distance of a variant's outputs from the model's: shapes, kinds of numbers, and places that are not finite."""

import math

import pytest
import torch

from whet.tuner.output_error import relative_error

PAIRS = torch.ones(3, 2, 2)
COMPLEX = torch.complex(PAIRS[..., 0], PAIRS[..., 1])


def test_it_is_relative_to_the_usual_value() -> None:
    wanted = torch.tensor([3.0, -4.0, 0.0, 5.0])
    found = wanted + torch.tensor([0.0, 0.1, 0.0, 0.0])
    usual = math.sqrt(50 / 4)
    assert relative_error(found, wanted) == pytest.approx(0.05 / usual, rel=1e-5)
    assert relative_error(found, wanted, 2.0) == pytest.approx(0.05 / 2, rel=1e-5)
    assert relative_error(torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3])) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (PAIRS, COMPLEX),
        (COMPLEX, PAIRS),
        (COMPLEX, torch.ones(3, 2)),
        (COMPLEX, torch.ones(3, 2, dtype=torch.int32)),
        (torch.ones(3), torch.ones(3, 1)),
        (torch.ones(1, dtype=torch.int64), torch.ones(3, dtype=torch.int64)),
    ],
)
def test_other_shapes_and_complex_numbers_in_place_of_real_ones_are_infinitely_far(
    found: torch.Tensor, wanted: torch.Tensor
) -> None:
    assert relative_error(found, wanted) == math.inf
    assert relative_error(COMPLEX, COMPLEX) == 0.0


def test_places_that_are_not_finite() -> None:
    wanted, found = torch.tensor([1.0, math.nan, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    assert relative_error(found, wanted) == 0.0
    assert relative_error(found, wanted, same_finite=True) == math.inf
    assert relative_error(wanted, wanted, same_finite=True) == 0.0
