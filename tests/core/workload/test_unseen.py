"""Inputs that were not seen are made of those that were: masks, integers and floats, each of their own kind."""

import torch
from torch import Tensor

from whet.core.workload.unseen import Unseen, unseen

IDS, MASK, X = torch.arange(5, 29).view(4, 6), torch.ones(4, 6, dtype=torch.long), torch.linspace(0, 1, 24).view(4, 6)


def named(*given: Tensor) -> dict[str, Unseen]:
    return {other.how: other for other in unseen([given])}


def test_masks_are_padded_on_both_sides_and_have_single_places_and_empty_rows() -> None:
    found = {how: other.tensors[1] for how, other in named(IDS, MASK, X).items() if how.startswith("masks")}
    left, right = found["masks padded on the left"], found["masks padded on the right"]
    assert left[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert right[0].tolist() == [1, 1, 0, 0, 0, 0]
    assert (found["masks that keep a single place"].sum(1) == 1).sum() == 2
    assert not found["masks with empty rows"][0].any()
    assert all(mask.dtype == MASK.dtype and set(mask.unique().tolist()) <= {0, 1} for mask in found.values())


def test_a_mask_that_is_added_keeps_its_numbers() -> None:
    lowest = torch.finfo(torch.float32).min
    for masked in (lowest, -torch.inf):
        added = torch.zeros(2, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), masked)
        found = [other.tensors[0] for how, other in named(added).items() if how.startswith("masks")]
        assert found
        assert all(set(mask.unique().tolist()) <= {0.0, masked} for mask in found)


def test_integers_keep_their_range_where_that_is_said() -> None:
    found = named(IDS, MASK, X)
    for how, other in found.items():
        if other.is_usual:
            assert other.tensors[0].min() >= IDS.min() and other.tensors[0].max() <= IDS.max(), how
    assert found["integers negated"].tensors[0].max() < 0
    assert found["the smallest integers of their dtype"].tensors[0].min() == torch.iinfo(torch.int64).min
    assert set(found["integers at the ends of those seen"].tensors[0].unique().tolist()) == {5, 28}


def test_several_inputs_of_a_kind_are_also_changed_alone_and_exchanged() -> None:
    found = named(IDS, IDS + 6)
    shuffled = found["integers shuffled"]
    assert [torch.equal(a, IDS) for a, _ in shuffled.alone] == [False, True]
    assert torch.equal(found["inputs of one shape exchanged"].tensors[0], IDS + 6)


def test_rounded_floats_hold_few_values() -> None:
    assert named(X)["floats rounded"].tensors[0].unique().numel() <= 5
