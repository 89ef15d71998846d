"""Who holds a tensor."""

import gc
from collections import deque

import torch
from torch import nn

from whet.profiling.model.allocations import AllocationTracker, storage_key
from whet.profiling.model.referrers import largest, live_objects, names_of, referrer_of

GLOBAL: list[torch.Tensor] = []


class Keeper:
    def __init__(self) -> None:
        self.seen: dict[int, torch.Tensor] = {}


def test_parameters_gradients_and_optimiser_state_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    names = names_of(live_objects())
    weight = model[0].weight
    state = optimizer.state[weight]
    keys = [weight, weight.grad, state["exp_avg"], model[1].running_mean]
    found = [names[storage_key(tensor)] for tensor in keys]  # type: ignore[index, arg-type]
    assert found == [
        "Sequential.0.weight",
        "gradient of Sequential.0.weight",
        "AdamW's exp_avg of Sequential.0.weight",
        "Sequential.1.running_mean",
    ]


def test_containers_are_named_by_their_variable() -> None:
    keeper, queue = Keeper(), deque[torch.Tensor]()
    a, b, c, d = (torch.ones(3) for _ in range(4))
    keeper.seen[1] = a
    queue.append(b)
    GLOBAL.append(c)
    nested = {"x": [d]}
    assert referrer_of(a) == "the dict 'Keeper.seen'"
    assert referrer_of(b) == "the deque 'queue' (in test_containers_are_named_by_their_variable)"
    assert referrer_of(c).endswith("test_referrers.GLOBAL'")
    assert "nested" in referrer_of(d)
    assert nested
    GLOBAL.clear()


def test_frozen_containers_are_found() -> None:
    a, b = torch.ones(3), torch.ones(4)
    keeper = Keeper()
    keeper.seen[1] = a
    keeper.seen[2] = b
    gc.freeze()
    assert storage_key(a) in live_objects().tensors
    gc.freeze()
    assert referrer_of(b) == "the dict 'Keeper.seen'"


def test_what_python_does_not_see_has_no_holder() -> None:
    assert referrer_of(torch.ones(2)) == ""


def test_the_largest_first_each_kind_once() -> None:
    with AllocationTracker() as tracker:
        many = [torch.ones(100) for _ in range(5)]
        one = torch.ones(300)
    found = largest(tracker.alive(), {storage_key(one) or 0: "the one"}, 2)
    assert [(live.name, live.count, live.allocation.num_bytes) for live in found] == [
        ("the one", 1, 1200),
        ("", 5, 400),
    ]
    assert len(many) == 5
