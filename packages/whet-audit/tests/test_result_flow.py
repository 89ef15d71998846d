"""Whether a gradient is asked for of what a function computes, by where its result goes."""

import pytest

from whet_audit.constants import Constants
from whet_audit.hot_paths import HotPaths
from whet_audit.project import Project
from whet_audit.source import Module
from whet_audit.type_inference import TypeInference

PROGRAM = """
import torch

class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt

    def keep(self, x):
        self.predicted = self.model(x)

    def compute(self, x):
        return self.model(x)

    def step(self, x):
        {method}
        self.loss.backward()
        self.opt.step()

def compute(model, x):
    return model(x).mean()

def through(model, x):
    found = compute(model, x)
    return found + 1

def put(model, x, found):
    found.append(model(x).mean())

def main(model, opt, loader, meter):
    found = []
    for x in loader:
        loss = model(x).mean()
        {body}
        loss.backward()
        opt.step()
    {after}

main(*options())
print(through(*options()))
"""


def only_infers(name: str, **given: str) -> bool:
    parts = {"method": "pass", "body": "pass", "after": "pass"} | given
    module = Module("program.py", PROGRAM.format(**parts))
    project = Project([module])
    paths = HotPaths(project, TypeInference(project), Constants(project))
    function = next(one for one in module.functions if one.qualname == name)
    return paths.only_infers(function)


@pytest.mark.parametrize(
    "given",
    [
        {"body": "print(compute(model, x))"},
        {"after": "score = compute(model, x); print(score)"},
        {"after": "meter.update(compute(model, x))"},
        {"body": "found.append(compute(model, x))", "after": "print(sum(found))"},
        {"after": "print(through(model, x))"},
    ],
)
def test_a_result_that_no_backward_pass_reads_asks_for_no_gradient(given: dict[str, str]) -> None:
    assert only_infers("compute", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"body": "loss = compute(model, x)"},
        {"body": "loss += through(model, x)"},
        {"body": "more = compute(model, x); loss = loss + more"},
        {"body": "found.append(compute(model, x)); loss = sum(found)"},
        {"body": "terms = [compute(model, x) for x in loader]; loss = sum(terms)"},
        {"body": "meter.loss = compute(model, x)"},
        {"body": "pair = {}; pair['a'] = compute(model, x); loss = pair['a']"},
        {"after": "compute(model, x).backward()"},
        {"after": "torch.autograd.backward(through(model, x))"},
    ],
)
def test_a_result_that_a_backward_pass_may_read_asks_for_one(given: dict[str, str]) -> None:
    assert not only_infers("compute", **given)


def test_what_a_function_leaves_behind_may_be_differentiated() -> None:
    assert not only_infers("Trainer.keep", method="self.keep(x); self.loss = self.predicted.mean()")
    assert not only_infers("Trainer.compute", method="self.loss = self.compute(x).mean()")
    assert not only_infers("put", body="put(model, x, found); loss = sum(found)")
    assert only_infers("Trainer.compute", method="print(self.compute(x))")
