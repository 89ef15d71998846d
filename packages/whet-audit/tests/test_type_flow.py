"""What a name is where it is read: by what was bound before, and not by what the function binds below."""

import ast

import pytest

from whet_audit.abstract_types import Kind
from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files
from whet_audit.project import Project
from whet_audit.source import Module
from whet_audit.type_inference import TypeInference

HEAD = "import torch\nimport numpy as np\nfrom elsewhere import thing\n"


def value(source: str) -> tuple[Kind, bool, str | None]:
    """The kind of what `here` is given, whether it is sure, and where it lies."""
    module = Module("train.py", HEAD + source)
    call = next(call for call in module.nodes(ast.Call) if getattr(call.func, "id", "") == "here")
    found = TypeInference(Project([module])).of(module, call.args[0])
    return found.kind, found.is_sure, found.device


@pytest.mark.parametrize(
    ("source", "kind", "is_sure"),
    [
        ("def f(x):\n    x = torch.zeros(3)\n    here(x)\n", Kind.TENSOR, True),
        ("def f(x):\n    here(x)\n    x = torch.zeros(3)\n", Kind.UNKNOWN, True),
        ("def f():\n    x = thing()\n    here(x)\n    x = torch.zeros(3)\n", Kind.UNKNOWN, True),
        ("def f(x):\n    for _ in range(3):\n        here(x)\n        x = torch.zeros(3)\n", Kind.TENSOR, True),
        ("def f():\n    x = thing()\n    while x:\n        here(x)\n        x = torch.zeros(3)\n", Kind.TENSOR, False),
        ("def f():\n    x = set()\n    here(x)\n    x = torch.from_numpy(x)\n", Kind.UNKNOWN, True),
        ("def f(x):\n    here(x.tolist())\n", Kind.LIST, True),
        ("def f(x):\n    for n in x.tolist():\n        here(n)\n", Kind.NUMBER, True),
        ("def f(x):\n    rows(x.tolist())\ndef rows(ns):\n    for n in ns:\n        here(n)\n", Kind.NUMBER, True),
    ],
)
def test_what_a_name_is(source: str, kind: Kind, is_sure: bool) -> None:
    assert value(source)[:2] == (kind, is_sure)


@pytest.mark.parametrize(
    ("e", "device"),
    [
        ("torch.Tensor([3])", "cpu"),
        ("torch.max(torch.Tensor([3]), dim=0)", "cpu"),
        ("torch.stack([torch.zeros(2), torch.ones(2)])", "cpu"),
        ("torch.zeros(2) - torch.ones(2)", "cpu"),
        ("torch.zeros(2) * other.cuda()", None),
        ("torch.add(torch.zeros(2), unknown)", "cpu"),  # else it would raise
        ("torch.zeros(2, device=d)", "gpu"),
        ("torch.relu(x)", None),
    ],
)
def test_where_a_tensor_lies(e: str, device: str | None) -> None:
    assert value(f"def f(x: torch.Tensor, other: torch.Tensor, d, unknown):\n    here({e})\n")[2] == device


GUARDED = """
import torch

class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, task: torch.Tensor):
        if {test}:
            n = int(task)
        return x.cuda() + n
"""


@pytest.mark.parametrize(
    ("test", "num"),
    [
        ("isinstance(task, int)", 0),
        ("isinstance(task, (int, float)) and x.ndim", 0),
        ("isinstance(task, torch.Tensor)", 1),
        ("isinstance(x, int)", 1),
        ("x.ndim == 2", 1),
    ],
)
def test_a_condition_that_says_what_a_value_is(test: str, num: int) -> None:
    found = inspect_files([SourceFile("net.py", GUARDED.format(test=test))]).findings
    assert len([finding for finding in found if finding.code == "SYN101"]) == num


def test_the_bytes_of_a_model_are_none() -> None:
    assert value("def f(x):\n    here(x.serialized_model_proto)\n")[0] is Kind.UNKNOWN
    assert value("def f(x):\n    here(x.model_ema)\n")[0] is Kind.MODEL
