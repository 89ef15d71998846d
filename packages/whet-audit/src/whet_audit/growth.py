"""Arrays that grow: `x = torch.cat([x, y])` in a loop, which copies all of x each time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from whet_audit.rule_context import RuleContext, is_known
from whet_audit.source import LoopNode

_JOINS = ("cat", "concat", "concatenate", "vstack", "hstack", "column_stack", "row_stack", "append")
_LIBRARIES = ("torch", "numpy")
_FEW = 16  # rounds that cost nothing to speak of


class Growth(NamedTuple):
    """`name = cat([name, ...])` in a loop. added: what is appended."""

    call: ast.Call
    name: str
    loop: LoopNode
    added: list[ast.expr]


def growths(context: RuleContext) -> Iterator[Growth]:
    """All places where a tensor or an array grows from one round of a loop to the next."""
    for call in context.calls(*_JOINS):
        dotted = context.dotted(call.func) or ""
        if dotted.partition(".")[0] not in _LIBRARIES or dotted.count(".") != 1 or not call.args:
            continue
        target = _assigned(context, call)
        parts = _parts(call)
        if target is None or target not in [ast.unparse(part) for part in parts]:
            continue
        loop = loop_around(context, call)
        if loop is None or _is_of_round(loop, target) or context.function_of(call).name == "__init__":
            continue
        if has_few_rounds(context, loop) or _starts_anew(context, loop, target, call):
            continue
        yield Growth(call, target, loop, [part for part in parts if ast.unparse(part) != target])


def loop_around(context: RuleContext, node: ast.AST) -> LoopNode | None:
    """The innermost loop whose body a node lies in, inside its function."""
    child = node
    for up in context.ancestors(node):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(up, ast.For | ast.AsyncFor | ast.While) and child in up.body:
            return up
        child = up
    return None


def reads(loop: LoopNode, name: str, call: ast.Call) -> list[ast.AST]:
    """Where a loop reads what grows, apart from the growing itself, its shape and comparisons with None."""
    inside = set(ast.walk(call))
    found: list[ast.AST] = []
    skipped: set[ast.AST] = set()
    for statement in loop.body:
        for node in ast.walk(statement):
            is_shape = isinstance(node, ast.Attribute) and node.attr in ("shape", "size", "ndim", "device", "dtype")
            is_len = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("len", "print")
            is_test = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
            if is_shape or is_len or is_test:
                skipped |= set(ast.walk(node))
            is_chain = isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)
            if is_chain and node not in inside and node not in skipped and ast.unparse(node) == name:
                found.append(node)
    return found


def has_few_rounds(context: RuleContext, loop: LoopNode) -> bool:
    """Whether a loop is known to run a handful of times."""
    if isinstance(loop, ast.While):
        return False
    over = loop.iter
    if isinstance(over, ast.Tuple | ast.List):
        return len(over.elts) <= _FEW
    if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "range" and over.args:
        last = context.constant(over.args[min(1, len(over.args) - 1)])
        return is_known(last) and isinstance(last, int) and last <= _FEW
    return False


def _assigned(context: RuleContext, call: ast.Call) -> str | None:
    """The one target that the call's value goes to, as source; through `if else` and methods such as `.to()`."""
    node: ast.AST = call
    for up in context.ancestors(call):
        if isinstance(up, ast.Assign):
            is_one = len(up.targets) == 1 and isinstance(up.targets[0], ast.Name | ast.Attribute | ast.Subscript)
            return ast.unparse(up.targets[0]) if is_one else None
        is_method = isinstance(up, ast.Attribute) or (isinstance(up, ast.Call) and up.func is node)
        if not is_method and not isinstance(up, ast.IfExp):
            return None
        node = up
    return None


def _parts(call: ast.Call) -> list[ast.expr]:
    first = call.args[0]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        return call.args[:2]
    return first.elts if isinstance(first, ast.Tuple | ast.List) else []


def _is_of_round(loop: LoopNode, target: str) -> bool:
    """Whether the loop's own variable, or what its body binds, picks what grows: `x[i] = cat([x[i], y])`."""
    tree = ast.parse(target, mode="eval").body
    if isinstance(tree, ast.Name):
        return False
    bound = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return any(isinstance(node, ast.Name) and node.id in bound for node in ast.walk(tree))


def _starts_anew(context: RuleContext, loop: LoopNode, name: str, call: ast.Call) -> bool:
    """Whether each round of the loop gives the name another value, so that nothing grows over rounds."""
    own = context.statement(call)
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.For) else []
        flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
        if node is own or node is loop or name not in [ast.unparse(e) for e in flat]:
            continue
        if not any(isinstance(up, ast.If) and name in ast.unparse(up.test) for up in context.ancestors(node)):
            value = node.value if isinstance(node, ast.Assign) else None
            if value is None or name not in [ast.unparse(e) for e in ast.walk(value) if isinstance(e, ast.expr)]:
                return True
            if isinstance(value, ast.Call) and context.kind(value) is not context.kind(call):
                return True  # `x = layer(x)`: the next round has another tensor
            if isinstance(value, ast.Call) and not isinstance(value.func, ast.Attribute):
                return True
    return False
