"""DST102 find-unused-parameters: DistributedDataParallel walks the graph after every forward pass.

Finds       `find_unused_parameters=True`, as a keyword, in a dict of options, or as the default of such an option.
Why slow    The graph is walked on the CPU in every step before the backward pass, and a map of what was used is
            all-reduced. For models that use all parameters it is for nothing.
Example     DistributedDataParallel(model, find_unused_parameters=True)
Instead     DistributedDataParallel(model), or `static_graph=True` where the unused ones are the same in every step
Gain        a few hundredths of a step, more for many small layers.
Fix         none: a model that does leave parameters out would raise in the second step, and the code does not show
            which ones do.
Source      PyTorch, "Distributed Data Parallel", internal design.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "DST102"
NAME = "find-unused-parameters"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "a CPU that is late with queueing, and a model that uses all its parameters")
_OPTIONS = ("find_unused_parameters", "ddp_find_unused_parameters")
_STRATEGIES = ("ddp_find_unused_parameters_true", "ddp_notebook_find_unused_parameters_true")


def check(context: RuleContext) -> Iterator[Hit]:
    """All ways to ask for it."""
    for keyword in context.nodes(ast.keyword):
        if keyword.arg not in _OPTIONS or not isinstance(context.parent(keyword), ast.Call):
            continue
        default = context.default(keyword.value)
        call = context.parent(keyword)
        if _is_true(keyword.value if default is None else default.node) and isinstance(call, ast.Call):
            yield _hit(call, f"{name_of(call)} looks for unused parameters in every step")
    for constant in context.nodes(ast.Constant):
        if constant.value in _STRATEGIES:
            yield _hit(constant, f"{context.shown(constant)} looks for unused parameters in every step")
        elif constant.value in _OPTIONS:
            yield from _by_key(context, constant)


def _by_key(context: RuleContext, key: ast.Constant) -> Iterator[Hit]:
    """`options["find_unused_parameters"] = True`, `{"find_unused_parameters": True}`, `.get(..., True)`."""
    parent = context.parent(key)
    value: ast.expr | None = None
    if isinstance(parent, ast.Subscript):
        user = context.parent(parent)
        value = user.value if isinstance(user, ast.Assign) and parent in user.targets else None
    elif isinstance(parent, ast.Dict):
        value = next((v for k, v in zip(parent.keys, parent.values, strict=True) if k is key), None)
    elif isinstance(parent, ast.Call) and name_of(parent) in ("get", "setdefault", "pop") and len(parent.args) == 2:
        value = parent.args[1]
    if value is not None and _is_true(value):
        yield _hit(key, "looks for unused parameters in every step, unless told otherwise")


def _hit(at: ast.AST, message: str) -> Hit:
    return Hit(at=at, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
