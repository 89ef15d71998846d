"""Models that torch.compile has compiled, or compiles while they are watched."""

from typing import Any

import pytest
import torch
from small_loops import NUM_FEATURES, Sleepy, run, train
from torch import Tensor, nn
from torch.utils.data import DataLoader

from whet.profiling.step.watch import watch, watch_everything


class Compilable(nn.Module):
    """Reads a value, so that its graph breaks, and calls what is patched."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(NUM_FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().sum().item()
        return self.linear(x.to(torch.float64).to(torch.float32).to("cpu")) * scale


@pytest.mark.parametrize("watched", ["in place", "what compile returned", "the module within"])
def test_compiled_models_are_timed_and_not_compiled_again(watched: str) -> None:
    model = Compilable()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(Sleepy(12, 0.0))
    num_graphs = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return graph.forward

    compiled: Any = model
    if watched == "in place":
        model.compile(backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
    run(train(compiled, optimizer, loader))
    compiled_before = num_graphs
    assert compiled_before >= 1
    steps = watch(model if watched == "the module within" else compiled, optimizer, loader)
    for _ in range(2):
        run(train(compiled, optimizer, steps))
    with watch_everything() as everything:
        run(train(compiled, optimizer, loader))
    assert num_graphs == compiled_before
    for report in (steps.report(), everything.report()):
        (forward,) = [p for p in report.phases if p.name == "forward"]
        assert forward.calls == pytest.approx(1)
    torch.compiler.reset()


@pytest.mark.parametrize("everything", [False, True])
def test_a_model_that_is_compiled_while_it_is_watched_gives_what_it_gave(everything: bool) -> None:
    model = Compilable()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(Sleepy(10, 0.0))
    x = torch.ones(1, NUM_FEATURES)
    expected = model(x)
    compiled: Any = torch.compile(model, backend="eager")
    if everything:
        plain = nn.Linear(NUM_FEATURES, 1)
        with watch_everything() as steps:
            run(train(plain, torch.optim.SGD(plain.parameters(), lr=0.0), loader))  # all is patched now
            run(train(compiled, optimizer, loader))
    else:
        steps = watch(compiled, optimizer, loader)
        run(train(compiled, optimizer, steps))
    assert steps.report().num_steps >= 9
    torch.testing.assert_close(compiled(x), expected)
    torch.compiler.reset()
