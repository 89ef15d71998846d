"""The leak finder: it names the planted line, and says nothing of clean loops."""

import inspect
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.profiling.model.allocations import AllocationTracker
from whet.profiling.model.leaks import Leak, is_spread
from whet.profiling.model.live_memory import inspect_memory

Step = Callable[[int], Any]
NUM_STEPS = 12


def leaks_of(steps: Iterator[None], num_steps: int = NUM_STEPS) -> tuple[Leak, ...] | None:
    """Run a generator that yields at the end of each step."""
    with AllocationTracker() as tracker:
        for _ in range(num_steps):
            next(steps)
            tracker.step()
        return inspect_memory(tracker)[1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.last = nn.Linear(64, 4)
        self.cache: list[Tensor] = []
        self.caches = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        if self.caches:
            self.cache.append(hidden.detach() * 2)  # planted in a module
        return self.last(hidden)


def train(*, net: Net, keep: Callable[[Tensor], Any], length: Callable[[int], int] = lambda i: 16) -> Iterator[None]:
    optimizer = torch.optim.AdamW(net.parameters())
    i = 0
    while True:
        x, y = torch.randn(length(i), 32), torch.randint(0, 4, (length(i),))
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep(loss)
        i += 1
        yield


def line_of(text: str) -> int:
    lines, first = inspect.getsourcelines(inspect.getmodule(line_of))  # type: ignore[arg-type]
    return next(i for i, line in enumerate(lines, start=1) if text in line and "line_of(" not in line) + 0 * first


def test_a_list_of_losses_is_named() -> None:
    losses: list[Tensor] = []
    (leak,) = leaks_of(train(net=Net(), keep=losses.append)) or ()
    assert leak.line.function == "train"
    assert leak.line.text == "loss = nn.functional.cross_entropy(net(x), y)"
    assert leak.keeps_graph
    assert "'losses'" in leak.held_by
    assert (leak.steps, leak.num_steps) == (NUM_STEPS - 2, NUM_STEPS - 2)
    assert "detach" in leak.sentence


def test_a_cache_in_a_module_is_named() -> None:
    net = Net()
    net.caches = True
    (leak,) = leaks_of(train(net=net, keep=lambda loss: None)) or ()
    assert leak.line.number == line_of("# planted in a module")
    assert leak.line.function == "forward"
    assert leak.bytes_per_step == 16 * 64 * 4
    assert leak.what == "float32[16, 64]"
    assert leak.held_by == "the list 'Net.cache'"
    assert not leak.keeps_graph


def test_graphs_that_are_never_freed_name_the_lines_that_saved_for_them() -> None:
    net = Net()
    losses = []

    def forward_only() -> Iterator[None]:
        while True:
            losses.append(net(torch.randn(16, 32)).sum())  # planted
            yield

    found = leaks_of(forward_only()) or ()
    assert found[0].line.text.endswith("# planted")  # first of all the line whose tensor keeps the others
    assert found[0].keeps_graph and "'losses'" in found[0].held_by
    assert {leak.line.function for leak in found} == {"forward_only", "forward"}
    assert all(not leak.held_by and "held by an autograd graph" in leak.sentence for leak in found[1:])


def test_a_leak_every_other_step_and_one_of_growing_sizes() -> None:
    kept: dict[int, Tensor] = {}

    def steps() -> Iterator[None]:
        for i in range(100):
            if i % 2:
                kept[i] = torch.ones(1000 + i)
            yield

    (leak,) = leaks_of(steps(), 30) or ()
    assert "kept" in leak.held_by and leak.held_by.startswith("the dict")
    assert "others" in leak.what


CLEAN: dict[str, Callable[[], Iterator[None]]] = {}


def clean(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    CLEAN[function.__name__] = function
    return function


@clean
def plain() -> Iterator[None]:
    return train(net=Net(), keep=lambda loss: None)


@clean
def logged_numbers() -> Iterator[None]:
    numbers: list[float] = []
    return train(net=Net(), keep=lambda loss: numbers.append(loss.item()))


@clean
def logged_detached_scalars() -> Iterator[None]:
    numbers: list[Tensor] = []
    return train(net=Net(), keep=lambda loss: numbers.append(loss.detach().clone()))


@clean
def growing_batches() -> Iterator[None]:
    return train(net=Net(), keep=lambda loss: None, length=lambda i: 4 * (i + 1))


@clean
def last_three_kept() -> Iterator[None]:
    recent: deque[Tensor] = deque(maxlen=3)
    return train(net=Net(), keep=lambda loss: recent.append(torch.ones(1000)))


@clean
def best_model_kept() -> Iterator[None]:
    best: dict[str, Tensor] = {}
    net = Net()
    return train(
        net=net,
        keep=lambda loss: best.update({k: v.clone() for k, v in net.state_dict().items()}) if not best else None,
    )


@clean
def accumulated_gradients() -> Iterator[None]:
    net = Net()
    while True:
        for _ in range(3):
            net(torch.randn(4, 32)).sum().backward()
        yield


@clean
def rising_average() -> Iterator[None]:
    average = torch.zeros(())

    def keep(loss: Tensor) -> None:
        average.mul_(0.9).add_(loss.detach(), alpha=0.1)

    return train(net=Net(), keep=keep)


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("num_steps", [6, 17])
def test_clean_loops_are_not_accused(name: str, num_steps: int) -> None:
    assert leaks_of(CLEAN[name](), num_steps) == ()


def test_too_few_steps_tell_nothing() -> None:
    losses: list[Tensor] = []
    assert leaks_of(train(net=Net(), keep=losses.append), 4) is None
    assert leaks_of(train(net=Net(), keep=losses.append), 5)


@given(num_steps=st.integers(5, 300))
def test_survivors_of_every_step_are_always_a_leak(num_steps: int) -> None:
    assert is_spread(frozenset(range(num_steps)), num_steps)


@given(num_steps=st.integers(5, 300), share=st.floats(0, 0.6))
def test_survivors_of_the_last_steps_alone_never_are(num_steps: int, share: float) -> None:
    recent = frozenset(range(num_steps - int(share * num_steps), num_steps))
    assert not is_spread(recent, num_steps)


@given(num_steps=st.integers(5, 300), steps=st.frozensets(st.integers(0, 299), max_size=2))
def test_survivors_of_two_steps_never_are(num_steps: int, steps: frozenset[int]) -> None:
    assert not is_spread(steps, num_steps)
