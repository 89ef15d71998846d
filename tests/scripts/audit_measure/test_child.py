"""A script is run as it is, for some steps: what it computes, in what order, and how it may fail."""

import re
from pathlib import Path
from typing import Any

import pytest

from whet.measure.isolate import Outcome, run_isolated
from whet.scripts.audit_measure.child import run_script

pytestmark = pytest.mark.usefixtures("forked")

SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randn(8, 1)
while True:
    for part_x, part_y in zip(x.chunk(args.accumulate), y.chunk(args.accumulate)):
        loss = torch.nn.functional.mse_loss(model(part_x), part_y) / args.accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(tmp_path: Path, source: str, arguments: list[str] | None = None, num_steps: int = 5) -> Outcome:
    script = tmp_path / "train.py"
    script.write_text(source)
    given: dict[str, Any] = {"script": str(script), "arguments": arguments or [], "num_steps": num_steps}
    return run_isolated(run_script, {**given, "limit_s": 30, "seed": 0}, tmp_path / "run", time_limit_s=60)


def test_steps_and_losses_are_those_of_the_script(tmp_path: Path) -> None:
    value = run(tmp_path, SCRIPT).value
    assert value is not None
    assert len(value["seconds"]) == len(value["losses"]) == 5
    assert value["losses"] == sorted(value["losses"], reverse=True)
    assert value["peak_bytes"] > 10**7
    micro = run(tmp_path, SCRIPT, ["--accumulate", "4"]).value
    assert micro is not None
    assert micro["losses"] == pytest.approx(value["losses"], rel=1e-4)  # the same steps, in four parts each


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ValueError('no data here')", "ValueError: no data here"),
        ("input('batch size? ')", "asks for input"),
        ("print('nothing to train')", "made no two optimiser steps"),
        ("import sys; sys.exit('give --data')", "give --data"),
        ("import torch; torch.ones(1).cuda()", "RuntimeError|AssertionError"),
    ],
)
def test_a_script_that_does_not_train_is_one_line(tmp_path: Path, source: str, words: str) -> None:
    failure = run(tmp_path, source).failure
    assert failure is not None
    assert re.search(words, failure.message), failure.message
    assert "\n" not in failure.message
