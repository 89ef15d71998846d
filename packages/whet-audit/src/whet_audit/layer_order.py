"""Which layers a model makes and which follow each other, in nn.Sequential, in lists and in forward passes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from whet_audit.dataflow import last_name
from whet_audit.rule_context import RuleContext
from whet_audit.source import Class, Function


class Pair(NamedTuple):
    """A layer and the one that its output goes to alone; both are the calls that make them."""

    first: ast.Call
    second: ast.Call


def layer_pairs(context: RuleContext) -> Iterator[Pair]:
    """All pairs of layers of which the second reads the first's output, and nothing else does."""
    for call in context.calls("Sequential"):
        if context.dotted(call.func) == "torch.nn.Sequential":
            yield from _in_row(call.args)
    for display in context.nodes(ast.List):
        yield from _in_row(display.elts)
    for cls in context.classes():
        forward = cls.methods.get("forward")
        if forward is not None and context.is_model_class(cls):
            yield from _in_forward(context, cls, forward)


def _in_row(elements: list[ast.expr]) -> Iterator[Pair]:
    for first, second in pairwise(elements):
        if isinstance(first, ast.Call) and isinstance(second, ast.Call):
            yield Pair(first, second)


def _in_forward(context: RuleContext, cls: Class, forward: Function) -> Iterator[Pair]:
    """self.bn(self.conv(x)), and x = self.conv(x); x = self.bn(x) in one block."""
    calls = [call for method in cls.methods.values() for call in method.calls]
    used: dict[str, int] = {}
    for call in calls:
        used[_layer_name(call)] = used.get(_layer_name(call), 0) + 1
    for call in forward.calls:
        inner = call.args[0] if len(call.args) == 1 else None
        if isinstance(inner, ast.Name):
            inner = _bound_just_above(context, call, inner)
        if not isinstance(inner, ast.Call) or used.get(_layer_name(inner)) != 1:
            continue
        first, second = _made(cls, _layer_name(inner)), _made(cls, _layer_name(call))
        if first is not None and second is not None:
            yield Pair(first, second)


def _layer_name(call: ast.Call) -> str:
    """`conv` of self.conv(x); "" for other calls."""
    is_own = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "self"
    return last_name(call.func) if is_own else ""


def _bound_just_above(context: RuleContext, call: ast.Call, name: ast.Name) -> ast.expr | None:
    """What the statement right above binds the name to, where the call's own binds the name anew."""
    statement = context.statement(call)
    block = next((b for b in _blocks(context.parent(statement)) if statement in b), [])
    place = block.index(statement) if statement in block else 0
    before = block[place - 1] if place else None
    if not isinstance(before, ast.Assign) or not isinstance(statement, ast.Assign):
        return None
    targets = [last_name(one.targets[0]) for one in (before, statement) if len(one.targets) == 1]
    return before.value if targets == [name.id, name.id] else None


def _blocks(node: ast.AST | None) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def _made(cls: Class, name: str) -> ast.Call | None:
    """The one call that an attribute of self is bound to."""
    bindings = cls.attributes.get(name, [])
    if not name or len(bindings) != 1 or bindings[0].path or bindings[0].how != "value":
        return None
    value = bindings[0].value
    return value if isinstance(value, ast.Call) else None
