"""Whether tensors made in a function or a block can reach code outside of it, which may train on or change them."""

from __future__ import annotations

import ast

from whet_audit.abstract_types import Kind
from whet_audit.project import root_name
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

_NO_TENSORS = (Kind.NUMBER, Kind.TEXT, Kind.ARRAY, Kind.NONE, Kind.FRAME, Kind.DEVICE, Kind.DTYPE)
_BUILTIN_NUMBERS = ("float", "int", "str", "len", "round", "bool")


def returns_tensors(context: RuleContext, function: Function) -> bool:
    """Whether a function may hand out tensors: by return, by yield, or in an attribute or an item."""
    for node in ast.walk(function.node):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal):
            return True
        if (
            isinstance(node, ast.Attribute | ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and root_name(node) not in function.bindings
        ):
            return True
    return any(
        statement.value is not None and _may_hold_tensors(context, statement.value) for statement in function.returns
    )


def leaves_block(context: RuleContext, block: ast.With) -> bool:
    """Whether what a block binds is read below it, or is put where it stays."""
    bound = {node.id for node in ast.walk(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    end = block.end_lineno or block.lineno
    is_repeated = any(isinstance(up, ast.For | ast.While) for up in context.ancestors(block))
    for node in ast.walk(context.function_of(block).node):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id not in bound:
            continue
        if node.lineno > end or (is_repeated and node.lineno < block.lineno):
            return True
    inside = [node for statement in block.body for node in ast.walk(statement)]
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in inside):
        return True
    stores = (node for node in inside if isinstance(node, ast.Attribute | ast.Subscript))
    if any(isinstance(node.ctx, ast.Store) for node in stores):
        return True
    return any(isinstance(node, ast.Call) and _fills(node) for node in inside)


def _fills(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend", "add", "update", "put")


def _may_hold_tensors(context: RuleContext, e: ast.expr) -> bool:
    if isinstance(e, ast.Tuple | ast.List):
        return any(_may_hold_tensors(context, one) for one in e.elts)
    if isinstance(e, ast.Dict):
        return any(_may_hold_tensors(context, one) for one in e.values)
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in _BUILTIN_NUMBERS:
        return False
    if isinstance(e, ast.Name):
        bindings = context.function_of(e).bindings.get(e.id, [])
        if not bindings or any(b.value is None or b.path or b.how not in ("value", "update") for b in bindings):
            return True
        return any(b.value is not e and _is_tensor(context, b.value) for b in bindings if b.value is not None)
    return _is_tensor(context, e)


def _is_tensor(context: RuleContext, e: ast.expr) -> bool:
    if isinstance(e, ast.BinOp):
        return _may_hold_tensors(context, e.left) or _may_hold_tensors(context, e.right)
    value = context.value(e)
    return value.kind not in _NO_TENSORS or not value.is_sure
