"""Rewrites a loop that runs a causal model once for each prefix of a sequence into one forward pass.

for t in range(K):                                              x = cat([prefix, embed(y[:, : K - 1])], dim=1)
    x = cat([prefix, embed(y[:, :t])], dim=1)             ->    logits = model(x)[:, -K:]
    logits = model(x)[:, -1]                                    loss = loss + K * cross_entropy(
    loss = loss + cross_entropy(logits, y[:, t])                    logits.flatten(0, 1), y[:, :K].flatten())

In a causal model, the output at a position does not depend on what follows, so the last K outputs of the longest prefix
are the outputs of all prefixes. K times the mean over B * K terms is the sum of K means over B.
"""

from __future__ import annotations

import ast
import textwrap

from whet_audit.finding import Fix, ReplaceStatement
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

_Replacement = tuple[ast.expr, str]


def one_forward(context: RuleContext, loop: ast.For, index: str) -> Fix | None:
    """The fix, where the loop is of this very form and uses its index for nothing else; else None."""
    bound = loop.iter
    if not isinstance(bound, ast.Call) or name_of(bound) != "range" or len(bound.args) != 1 or loop.orelse:
        return None
    if not isinstance(bound.args[0], ast.Name | ast.Attribute | ast.Constant):
        return None
    if not all(isinstance(statement, ast.Assign | ast.AugAssign) for statement in loop.body):
        return None
    times = context.source(bound.args[0])
    found = [
        _of_prefix(context, loop, index, times),
        _of_last(context, loop, times),
        _of_loss(context, loop, index, times),
    ]
    if any(replacement is None for replacement in found):
        return None
    replacements = [replacement for replacement in found if replacement is not None]
    used = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id == index]
    mended = {node for replaced, _ in replacements for node in ast.walk(replaced)}
    if any(node not in mended and node is not loop.target for node in used):
        return None
    source = _body(context, loop, replacements)
    return Fix("one causal forward pass for all prefixes", False, (ReplaceStatement(context.span(loop), source),))


def _of_prefix(context: RuleContext, loop: ast.For, index: str, times: str) -> _Replacement | None:
    """The one `y[:, :t]`."""
    found = []
    for node in ast.walk(loop):
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) != 2:
            continue
        rows, columns = node.slice.elts
        is_cut = isinstance(columns, ast.Slice) and columns.lower is None and columns.step is None
        upper = columns.upper if isinstance(columns, ast.Slice) else None
        if _is_all(rows) and is_cut and isinstance(upper, ast.Name) and upper.id == index:
            found.append(node)
    return (found[0], f"{context.operand(found[0].value)}[:, : {times} - 1]") if len(found) == 1 else None


def _of_last(context: RuleContext, loop: ast.For, times: str) -> _Replacement | None:
    """The one `...[:, -1]`, of what the model gave."""
    found = []
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) in (2, 3):
            rows, last, *rest = node.slice.elts
            is_last = isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.USub)
            is_one = is_last and isinstance(last, ast.UnaryOp) and isinstance(last.operand, ast.Constant)
            if _is_all(rows) and is_one and all(map(_is_all, rest)) and ast.unparse(last) == "-1":
                found.append(node)
    space = "" if times.isidentifier() or times.isdigit() else " "  # as formatters have it
    return (found[0], f"{context.operand(found[0].value)}[:, -{times}{space}:]") if len(found) == 1 else None


def _of_loss(context: RuleContext, loop: ast.For, index: str, times: str) -> _Replacement | None:
    """The one cross_entropy(logits, y[:, t]) that a running sum takes, with nothing but its two arguments."""
    calls = [
        node for node in ast.walk(loop) if isinstance(node, ast.Call) and context.dotted(node.func) in _CROSS_ENTROPY
    ]
    if len(calls) != 1 or len(calls[0].args) != 2 or calls[0].keywords:
        return None
    logits, target = calls[0].args
    if not isinstance(logits, ast.Name) or not isinstance(target, ast.Subscript) or not _is_added(context, calls[0]):
        return None
    place = target.slice
    if not isinstance(place, ast.Tuple) or len(place.elts) != 2 or not _is_all(place.elts[0]):
        return None
    if not isinstance(place.elts[1], ast.Name) or place.elts[1].id != index:
        return None
    function, wanted = context.source(calls[0].func), context.operand(target.value)
    return calls[0], f"{times} * {function}({logits.id}.flatten(0, 1), {wanted}[:, :{times}].flatten())"


_CROSS_ENTROPY = ("torch.nn.functional.cross_entropy",)


def _is_added(context: RuleContext, call: ast.Call) -> bool:
    """`loss += call` or `loss = loss + call`."""
    parent = context.parent(call)
    if isinstance(parent, ast.AugAssign):
        return isinstance(parent.op, ast.Add) and parent.value is call
    statement = context.parent(parent) if parent is not None else None
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Add) or not isinstance(statement, ast.Assign):
        return False
    other = parent.left if parent.right is call else parent.right
    target = statement.targets[0]
    return isinstance(other, ast.Name) and isinstance(target, ast.Name) and other.id == target.id


def _is_all(e: ast.expr) -> bool:
    """`:` alone."""
    return isinstance(e, ast.Slice) and e.lower is None and e.upper is None and e.step is None


def _body(context: RuleContext, loop: ast.For, replacements: list[_Replacement]) -> str:
    """The loop's body with the replacements, at the margin, with its comments between statements."""
    first, last = loop.body[0].lineno, loop.body[-1].end_lineno or loop.body[-1].lineno
    lines = context.module.python_lines[first - 1 : last]
    for node, source in sorted(replacements, key=lambda one: context.span(one[0]), reverse=True):
        span = context.span(node)
        head = lines[span.line - first][: span.column]
        tail = lines[span.end_line - first][span.end_column :]
        lines[span.line - first : span.end_line - first + 1] = [head + source + tail]
    return textwrap.dedent("\n".join(lines))
