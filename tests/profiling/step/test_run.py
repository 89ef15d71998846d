"""Running what a user's function stands for: a loop of its own, the parts of one, or one step."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_loops import NUM_FEATURES, parts, run, train
from torch import nn

from whet.errors import TargetError
from whet.profiling.bounds import Bound
from whet.profiling.step.report import StepReport
from whet.profiling.step.run import run_training


def watched(function: Callable[[], Any], num_steps: int = 8, limit_s: float = 60.0) -> StepReport:
    return run_training(
        function,
        num_steps=num_steps,
        limit_s=limit_s,
        describe=lambda error: f"{type(error).__name__}: {error}",
        note=lambda report: None,
    )


def test_a_loop_of_its_own_is_stopped_when_enough_was_seen() -> None:
    seen: list[float] = []

    def loop() -> None:
        seen.extend(loss.item() for loss in train(*parts(1000)))

    report = watched(loop)
    assert report.num_counted == 8
    assert not report.is_partial
    assert len(seen) <= 12


def test_the_parts_of_a_loop_in_every_form() -> None:
    model, optimizer, loader = parts(5)
    loss = nn.MSELoss()
    forms: list[Any] = [
        (model, optimizer, loader, loss),
        {"model": model, "optimizer": optimizer, "loader": loader, "loss": loss},
        SimpleNamespace(model=model, optimizer=optimizer, loader=loader, loss=nn.functional.mse_loss),
    ]
    for form in forms:
        before = model.linear.weight.clone()
        report = watched(lambda form=form: form)
        assert report.num_counted == 8  # more than one epoch
        assert report.verdict is not Bound.TOO_FEW_STEPS
        assert not report.is_partial
        assert not torch.equal(model.linear.weight, before)


def test_batches_of_every_kind() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(NUM_FEATURES, 1)

        def forward(self, x: Any, y: Any = None) -> Any:
            return SimpleNamespace(loss=self.linear(x).square().mean())

    named = Named()
    optimizer = torch.optim.SGD(named.parameters(), lr=0.1)
    x = torch.randn(2, NUM_FEATURES)
    for batch in ({"x": x, "y": x}, (x, x), [x], x):
        assert watched(lambda batch=batch: (named, optimizer, [batch] * 3), 4).num_counted == 4
    model, other, _ = parts(1)
    report = watched(lambda: (model, other, [x] * 4, lambda output, batch: (output - batch.sum()).mean()), 4)
    assert report.num_counted == 4


def test_a_function_that_makes_one_step() -> None:
    model, optimizer, loader = parts(1)
    batch = list(loader)

    def build() -> Callable[[], None]:
        return lambda: run(train(model, optimizer, batch))

    report = watched(build)
    assert report.num_counted == 8
    (data,) = [phase for phase in report.phases if phase.name == "data wait"]
    assert data.absent


def test_what_was_measured_before_an_exception_is_kept() -> None:
    def loop() -> None:
        model, optimizer, loader = parts(100)
        for index, _ in enumerate(train(model, optimizer, loader)):
            if index == 9:
                raise OSError("the disk is full")

    report = watched(loop, 50)
    assert report.is_partial
    assert report.ended_by == "OSError: the disk is full"
    assert report.num_counted >= 5
    assert report.verdict is not Bound.TOO_FEW_STEPS

    model, optimizer, loader = parts(5)
    report = watched(lambda: (model, optimizer, loader, lambda output, target: 1 / 0))
    assert report.is_partial
    assert report.verdict is Bound.TOO_FEW_STEPS
    assert report.ended_by.startswith("ZeroDivisionError")


def test_a_loop_that_ends_of_itself_or_by_sys_exit_is_whole() -> None:
    def loop() -> None:
        run(train(*parts(10)))
        raise SystemExit(0)

    report = watched(loop, 500)
    assert not report.is_partial
    assert 5 <= report.num_counted <= 8


def test_zero_steps_and_one() -> None:
    assert watched(lambda: None).verdict is Bound.TOO_FEW_STEPS
    assert watched(lambda: run(train(*parts(1)))).verdict is Bound.TOO_FEW_STEPS


def test_the_time_limit_ends_a_loop_and_the_report_says_so() -> None:
    def loop() -> None:
        model, optimizer, loader = parts(10_000, data_s=0.01)
        run(train(model, optimizer, loader))

    report = watched(loop, 10_000, limit_s=0.3)
    assert not report.is_partial
    assert any("stopped after" in note for note in report.notes())
    assert report.num_counted < 100


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, "returned int; it must run its training loop, or return"),
        ((nn.Linear(1, 1), [1]), "returned Linear, list"),
        ((nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters()), 7), "the loader is an int"),
        ((nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters()), [], 7), "the loss is an int"),
        ((nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters()), []), "the loader gives no batches"),
        (
            (nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters()), [torch.ones(2, 1)]),
            "returned a Tensor without a loss",
        ),
    ],
)
def test_what_trains_nothing_is_a_clear_error(returned: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        watched(lambda: returned)
