"""DAT107 element-wise-tensor-fill: a tensor written one number at a time by a Python loop.

Finds       `t[i] = ...` or `t[i, j] = ...` of a tensor in a loop inside a step, a collate function or __getitem__; and
            torch.tensor of a list comprehension whose elements are tensors.
Why slow    Each write is an operator call of microseconds for one number; on a GPU a kernel, or a copy, each.
Example     for i, n in enumerate(lengths): mask[i, n] = 1
Instead     mask[torch.arange(len(lengths)), lengths] = 1, or fill a list and make the tensor once.
Gain        number of elements * a few microseconds.
Fix         none: how to write it at once depends on what is written.
Source      PyTorch documentation, "Tensor views" and torch.Tensor.index_put_.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "DAT107"
NAME = "element-wise-tensor-fill"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "hundreds of elements, at a few microseconds each")


def check(context: RuleContext) -> Iterator[Hit]:
    """Writes by index in loops, then tensors made of lists of tensors."""
    for statement in context.nodes(ast.Assign):
        target = statement.targets[0]
        if len(statement.targets) == 1 and isinstance(target, ast.Subscript) and _is_element(target):
            yield from _write(context, statement, target)
    for call in context.calls_to("torch.tensor", "torch.FloatTensor", "torch.LongTensor", "torch.as_tensor"):
        if call.args and isinstance(call.args[0], ast.ListComp) and _holds_tensors(context, call.args[0]):
            hot = context.hot(call)
            if hot is not None and not hot.guard:
                message = f"{context.shown(call)} reads tensors one by one; torch.stack does it at once"
                yield Hit(at=call, hot=hot, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)


def _write(context: RuleContext, statement: ast.Assign, target: ast.Subscript) -> Iterator[Hit]:
    loop = _loop(context, statement)
    if loop is None or loop in context.hot_paths.loops or _depends_on_last_turn(context, statement, loop):
        return
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    if not counters & {node.id for node in ast.walk(target.slice) if isinstance(node, ast.Name)}:
        return
    value = context.value(target.value)
    if value.kind is not Kind.TENSOR or not value.is_sure:
        return
    hot = context.hot(statement)
    if hot is None or hot.guard:
        return
    yield Hit(
        at=statement,
        hot=hot,
        message=f"{context.shown(target)} is written in a Python loop, one element at a time",
        confidence=Confidence.MEDIUM if hot.kind != HeatKind.INFERENCE_CALL else Confidence.LOW,
        priority=Priority.LOW if hot.kind == HeatKind.DATA else None,
        gain=_GAIN,
    )


def _is_element(target: ast.Subscript) -> bool:
    """Whether the index is of names and numbers alone: a slice writes many elements."""
    parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    return all(isinstance(part, ast.Name | ast.Constant | ast.BinOp) for part in parts) and not any(
        isinstance(part, ast.Constant) and not isinstance(part.value, int) for part in parts
    )


def _loop(context: RuleContext, node: ast.AST) -> ast.For | None:
    for up in context.ancestors(node):
        if isinstance(up, ast.For):
            return up
        if isinstance(up, ast.While) or up in context.module.function_of_node:
            return None
    return None


def _depends_on_last_turn(context: RuleContext, statement: ast.Assign, loop: ast.For) -> bool:
    """Whether a turn needs the one before (a recurrence, no fill), runs a model, or the loop is left early."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and context.call_kind(node) in (CallKind.MODEL, CallKind.STEP, CallKind.GENERATE):
            return True
        if isinstance(node, ast.AugAssign):
            return True
    filled = ast.unparse(statement.targets[0].value) if isinstance(statement.targets[0], ast.Subscript) else ""
    for node in ast.walk(loop):
        is_read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        if is_read and isinstance(node, ast.Subscript) and ast.unparse(node.value) == filled:
            return True
    return any(isinstance(node, ast.Assign) and _updates_itself(node) for node in ast.walk(loop))


def _updates_itself(assign: ast.Assign) -> bool:
    """Whether it is `x = f(x)`, of names."""
    nodes = [node for target in assign.targets for node in ast.walk(target)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return bool(stored & {node.id for node in ast.walk(assign.value) if isinstance(node, ast.Name)})


def _holds_tensors(context: RuleContext, comprehension: ast.ListComp) -> bool:
    e = comprehension.elt
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr == "item":
        return context.is_tensor(e.func.value, surely=True)
    return context.is_tensor(e, surely=True)
