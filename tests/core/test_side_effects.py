"""What examine finds out about a model beyond its outputs: inputs written to, memory of calls, shared memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.core.side_effects import altered
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import ModelError


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4))
        self.last: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def examined(function: Callable[..., Any], *inputs: Any) -> ExaminedWorkload:
    return examine(Workload(model=Lambda(function), inputs=list(inputs) or [torch.rand(3, 4) + 1]))


def write_by_numpy(model: Lambda, x: Tensor) -> Tensor:
    x.numpy().clip(0, None, out=x.numpy())
    return x + 1


@pytest.mark.parametrize(
    "function", [lambda m, x: x.relu_() * 2, lambda m, x: x.add_(1), lambda m, x: x[:1].zero_(), write_by_numpy]
)
def test_inputs_that_are_written_to(function: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="the model writes into its input 0"):
        examined(function)


def remember(model: Lambda, x: Tensor) -> Tensor:
    before, model.last = model.last, x.clone()
    return x + 1 if before is None or torch.equal(before, x) else x + before


def test_a_model_that_remembers_the_call_before() -> None:
    """With one batch nothing but other inputs shows it."""
    with pytest.raises(ModelError, match="it remembers them"):
        examined(remember)


@pytest.mark.parametrize(
    ("function", "shared"),
    [
        (lambda m, x: x * m.weight, ()),
        (lambda m, x: (x + 1).chunk(2, 0), ()),  # one storage, but no common memory
        (lambda m, x: x, (0,)),
        (lambda m, x: (x * 2, x[:, 1:]), (1,)),
        (lambda m, x: (x * 2, m.weight), (1,)),
        (lambda m, x: ((y := x * 2), y[:, 0]), (1,)),
        (lambda m, x: ((y := x * 2), y), (1,)),
    ],
)
def test_outputs_that_share_memory(function: Callable[..., Any], shared: tuple[int, ...]) -> None:
    assert examined(function).shared == shared


@pytest.mark.parametrize(
    ("function", "depends"),
    [
        (lambda m, x: x * m.weight, False),
        (lambda m, x: x * m.weight * (2 if torch.is_grad_enabled() else 1), True),
        (lambda m, x: x + m.weight.add_(0), True),  # a weight that requires gradients cannot be written to
    ],
)
def test_outputs_that_depend_on_the_gradient_mode(function: Callable[..., Any], depends: bool) -> None:
    assert examined(function).depends_on_grad_mode is depends


def test_effects_are_found_and_can_be_left_out() -> None:
    workload = Workload(model=Lambda(lambda m, x: (print("a call"), x + 1)[1]), inputs=[torch.rand(3, 4)])
    assert len(examine(workload).effects) == 1
    assert examine(workload).effects[0].startswith("prints in ")
    assert examine(workload, with_effects=False).effects == ()
    assert examine(workload, with_behaviour=False).effects == ()


def test_other_inputs_are_of_the_same_kinds() -> None:
    batch = [torch.rand(3, 4), torch.tensor([[1, 1, 7]]), torch.tensor([True, False]), torch.zeros(0, 2)]
    found = dict(altered(batch))
    assert torch.equal(found["negated"][0], -batch[0])
    for x, y in zip(batch, found["shuffled"], strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert torch.equal(x.flatten().sort().values, y.flatten().sort().values)
    assert "negated" not in dict(altered(batch[1:3]))
    assert all(map(torch.equal, found["shuffled"], dict(altered(batch))["shuffled"]))
