"""Samples and tokens of the batches that a step used."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from whet.profiling.step.log import StepRecord
from whet.scripts.monitor.torch_loop import TorchLoop, size_of

Step = tuple[StepRecord, int | None, int | None]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(8, 3), (8, None)),
        ([torch.zeros(8, 3), torch.zeros(8)], (8, None)),
        ({"input_ids": torch.zeros(4, 16), "labels": torch.zeros(4)}, (4, 64)),
        ({"label": "text", "image": torch.zeros(5, 3)}, (5, None)),
        (("text", [torch.tensor(3.0), torch.zeros(2)]), (2, None)),
        ({"input_ids": [1, 2]}, (None, None)),
        (torch.tensor(1.0), (None, None)),
        ("text", (None, None)),
        (None, (None, None)),
    ],
)
def test_size_of_a_batch(batch: Any, size: tuple[int | None, int | None]) -> None:
    assert size_of(batch) == size


def steps_of(num_accumulated: int, num_batches: int = 12, batch_size: int = 4) -> list[Step]:
    steps: list[Step] = []
    loop = TorchLoop(lambda *step: steps.append(step))
    try:
        model = nn.Embedding(10, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = [{"input_ids": torch.randint(0, 10, (6,))} for _ in range(num_batches * batch_size)]
        for i, batch in enumerate(DataLoader(data, batch_size=batch_size)):  # type: ignore[arg-type]
            model(batch["input_ids"]).sum().backward()
            if i % num_accumulated == num_accumulated - 1:
                optimizer.step()
                optimizer.zero_grad()
    finally:
        loop.stop()
    return steps


def test_samples_and_tokens_of_every_step() -> None:
    steps = steps_of(1)
    assert len(steps) == 11
    assert {(samples, tokens) for _, samples, tokens in steps} == {(4, 24)}


def test_with_gradient_accumulation_a_step_has_several_batches() -> None:
    steps = steps_of(3)
    assert {(samples, tokens) for _, samples, tokens in steps} == {(12, 72)}


def test_phases_add_up_to_the_step() -> None:
    for step, *_ in steps_of(1):
        assert sum(step.phases_s().values()) == pytest.approx(step.seconds, rel=1e-6)
