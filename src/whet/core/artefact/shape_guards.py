"""Check the conditions under which an exported graph equals the model, on inputs' sizes and memory layouts.

torch.export follows one path through a model's code. Where the code asks about a size (`if x.shape[1] > 512`), the
answer becomes a condition on every later call. A call that breaks it would silently take the wrong path. PyTorch's own
check of these takes longer than a small model does, and runs the conditions as code. Here they are first parsed as
arithmetic on sizes, and then take a microsecond each.
"""

import ast
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whet.errors import ArtefactError

Inputs = dict[str, Any]
Condition = Callable[[Inputs], bool]

WITHOUT_GRADIENTS = "not L['gradients']"  # whether gradients are recorded is an input like any other

_NODES = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.cmpop, ast.IfExp),
    *(ast.BinOp, ast.operator, ast.Constant, ast.Subscript, ast.Attribute, ast.Call, ast.Name, ast.Load),
)
_NAMES = {"L": None, "math": math, "max": max, "min": min, "float": float, "int": int, "abs": abs}
_METHODS = ("size", "stride", "storage_offset", "is_contiguous")


class Guards:
    """Conditions on flat inputs, as conditions_of gives them: L['tensors'][0].size()[1] <= 512."""

    def __init__(self, conditions: Sequence[str]) -> None:
        self._conditions = [(condition, _compiled(condition)) for condition in conditions]

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise ArtefactError where flat inputs break a condition, and say which."""
        if not self._conditions:
            return
        ends: dict[int, tuple[float, float]] = {}
        inputs: Inputs = {
            "tensors": tensors,
            "gradients": torch.is_grad_enabled(),
            "least": _Ends(tensors, ends, 0),
            "largest": _Ends(tensors, ends, 1),
        }
        for condition, holds in self._conditions:
            if not holds(inputs):
                raise ArtefactError(_broken(condition, tensors))


class _Ends:
    """Find the least (0) or the largest (1) value of each input: both together, when one is first needed."""

    def __init__(self, tensors: Sequence[Tensor], found: dict[int, tuple[float, float]], which: int) -> None:
        self._tensors, self._found, self._which = tensors, found, which

    def __getitem__(self, i: int) -> float:
        if i not in self._found:
            tensor = self._tensors[i]
            low, high = tensor.aminmax() if tensor.numel() else (tensor.new_zeros(()), tensor.new_zeros(()))
            self._found[i] = low.item(), high.item()
        return self._found[i][self._which]


def _broken(condition: str, tensors: Sequence[Tensor]) -> str:
    if condition == WITHOUT_GRADIENTS:
        return (
            "what was tuned holds only where gradients are off: the model's code takes another path where they are "
            "recorded; call it under torch.no_grad()"
        )
    shapes = ", ".join(str(list(t.shape)) for t in tensors)
    if "['least']" in condition or "['largest']" in condition:
        return (
            f"what was tuned holds only where {readable(condition)}: a table has no rows for other values, or the "
            "runtime has too few bits for the integers that the model computes from them"
        )
    if "is_contiguous" in condition:
        return (
            f"what was tuned holds only where {readable(condition)}, and was called with strides "
            f"{', '.join(str(t.stride()) for t in tensors)} for shapes {shapes}: the model's code asks how its inputs "
            "lie in memory; call it with x.contiguous()"
        )
    return (
        f"what was tuned holds only where {readable(condition)}, and was called with shapes {shapes}: "
        "the model's code takes another path there; tune it with inputs of such shapes"
    )


def conditions_of(program: torch.export.ExportedProgram) -> list[str]:
    """Return the conditions under which an exported program holds, in terms of its inputs by position."""
    found = list(program._guards_code)
    for i, name in enumerate(program.graph_signature.user_inputs):
        found = [condition.replace(f"L['{name}']", f"L['tensors'][{i}]") for condition in found]
    return found


def is_arithmetic(condition: str) -> bool:
    """Return whether a condition is only arithmetic on the sizes of inputs, and so can be checked safely."""
    try:
        tree = ast.parse(condition, mode="eval")
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Name) and node.id not in _NAMES:
            return False
        if isinstance(node, ast.Attribute) and not _is_known(node):
            return False
        if isinstance(node, ast.Call) and (node.keywords or (_is_method(node.func) and node.args)):
            return False
    return True


def readable(condition: str) -> str:
    """Return a condition for people: "size 1 of input 0 <= 512" for L['tensors'][0].size()[1] <= 512."""
    condition = re.sub(r"L\['(least|largest)'\]\[(\d+)\]", r"the \1 value of input \2", condition)
    condition = re.sub(r"L\['tensors'\]\[(\d+)\]\.is_contiguous\(\)", r"input \1 is contiguous", condition)
    return re.sub(r"L\['tensors'\]\[(\d+)\]\.(\w+)\(\)\[(\d+)\]", r"\2 \3 of input \1", condition)


def _compiled(condition: str) -> Condition:
    if not is_arithmetic(condition):
        raise ArtefactError(
            f"the artefact holds under a condition that whet cannot check: {condition[:200]}; write it again with "
            "`whet apply`"
        )
    compute = eval(f"lambda L: {condition}", {**_NAMES, "__builtins__": {}})

    def holds(inputs: Inputs) -> bool:
        try:
            return bool(compute(inputs))
        except ArithmeticError:  # such as a size modulo another that is zero
            return False

    return holds


def _is_known(node: ast.Attribute) -> bool:
    in_math = isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
    return in_math or (_is_method(node) and isinstance(node.value, ast.Subscript))


def _is_method(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _METHODS
