"""MEM102 loss-kept-with-graph: a tensor is kept beyond its step together with the graph it was computed by.

Finds       `total += loss`, `losses.append(loss)`, `outputs.append(model(x))` over the steps of a loop, where gradients
            are on and nothing is ever differentiated from the sum or the list.
Why slow    Each step's graph stays: memory grows with every step. Without a backward pass it holds all activations.
Example     for x, y in loader: ...; loss.backward(); total += loss
Instead     total += loss.detach()
Gain        little time; memory that grows with the number of steps.
Fix         safe where the loop has called backward by then, since that graph is of no more use; else unsafe. None of
            what another function may differentiate: results, attributes and arguments, evaluations apart.
Source      PyTorch FAQ, "My model reports cuda runtime error(2): out of memory".
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.answers import is_for_answers
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Fix, Gain, Hit, HotPath, Priority
from whet_audit.gradients import carries_graph, differentiated, feeds_backward, goes_into, is_off
from whet_audit.hot_paths import INFERS, TRAINS
from whet_audit.inference import is_hook, takes_gradients
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

CODE = "MEM102"
NAME = "loss-kept-with-graph"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.05, "allocations only; memory is what it saves, in proportion to the number of steps")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def check(context: RuleContext) -> Iterator[Hit]:
    """Sums and lists that outlive the step and are given tensors with their graph."""
    for update in context.nodes(ast.AugAssign):
        if isinstance(update.op, ast.Add):
            yield from _hit(context, update, update.target, update.value)
    for assignment in context.nodes(ast.Assign):
        target, value = assignment.targets[0], assignment.value
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add) or not isinstance(target, ast.Name):
            continue
        if isinstance(value.left, ast.Name) and value.left.id == target.id:
            yield from _hit(context, assignment, target, value.right)
    for call in context.calls("append"):
        if isinstance(call.func, ast.Attribute) and len(call.args) == 1:
            yield from _hit(context, call, call.func.value, call.args[0])


def _hit(context: RuleContext, at: ast.stmt | ast.Call, kept: ast.expr, value: ast.expr) -> Iterator[Hit]:
    hot = context.hot(at)
    if hot is None or hot.guard or hot.kind not in TRAINS | INFERS or carries_graph(context, value) is not True:
        return
    function = context.function_of(at)
    if not _outlives_step(context, at, kept, function, hot) or _is_differentiated(context, kept, function, at):
        return
    if is_off(context, at):
        return
    trains = hot.kind in TRAINS
    if not trains and (is_hook(context, function) or takes_gradients(context, function)):
        return  # a loss that is named like a prediction
    yield Hit(
        at=at,
        hot=hot,
        message=f"{context.shown(at)} keeps the graph of every step alive"
        + ("" if trains else ", activations and all"),
        confidence=Confidence.HIGH if trains and context.is_tensor(value, surely=True) else Confidence.MEDIUM,
        gain=_GAIN,
        fix=_detached(context, kept, value, may_be_safe=trains and _has_backward(context, function)),
        priority=None if trains else Priority.HIGH,
    )


def _outlives_step(context: RuleContext, at: ast.AST, kept: ast.expr, function: Function, hot: HotPath) -> bool:
    """Whether what is kept was there before the step and stays after it."""
    root = kept
    while isinstance(root, ast.Subscript | ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    name = ast.unparse(kept if isinstance(kept, ast.Attribute) else root)
    loop = next((up for up in context.ancestors(at) if up in context.hot_paths.loops), None)
    if loop is None:
        is_local = root.id in function.bindings and root.id != "self"
        return not is_local and not _is_reset(context, function.node, name, at)
    if isinstance(root, ast.Name) and root is not kept and root.id == "self" and not isinstance(kept, ast.Attribute):
        return False
    return not _is_reset(context, loop, name, at)


def _is_reset(context: RuleContext, scope: ast.AST, name: str, at: ast.AST) -> bool:
    """Whether the name is bound anew, cleared or read for more than a length within the scope."""
    own = set(ast.walk(context.statement(at)))
    for node in ast.walk(scope):
        if node in own or not isinstance(node, ast.Name | ast.Attribute) or ast.unparse(node) != name:
            continue
        parent = context.parent(node)
        if isinstance(node.ctx, ast.Store | ast.Del):
            if not (isinstance(parent, ast.AugAssign) and parent.target is node):
                return True
        elif isinstance(parent, ast.Attribute) and parent.attr in ("clear", "pop", "popleft", "popitem"):
            return True
        elif isinstance(parent, ast.Call) and node in parent.args:
            called = parent.func.attr if isinstance(parent.func, ast.Attribute) else getattr(parent.func, "id", "")
            if called in ("stack", "cat", "sum", "add_n") and isinstance(scope, _LOOPS):
                return True
        elif isinstance(parent, ast.Delete):
            return True
    return False


def _is_differentiated(context: RuleContext, kept: ast.expr, function: Function, at: ast.AST) -> bool:
    if isinstance(kept, ast.Name) and feeds_backward(context, function, kept.id):
        return True
    text = ast.unparse(kept)
    if f"{text}.backward" in context.module.text:
        return True
    in_loop = any(up in context.hot_paths.loops for up in context.ancestors(at))
    returned = {
        node.id for r in function.returns if r.value for node in ast.walk(r.value) if isinstance(node, ast.Name)
    }
    return not in_loop and isinstance(kept, ast.Name) and kept.id in returned


def _may_be_differentiated(context: RuleContext, kept: ast.expr, function: Function) -> bool:
    """Whether what is kept reaches other functions, which may take its gradients."""
    if not isinstance(kept, ast.Name) or kept.id not in function.bindings:
        return True
    results = [node.value for node in ast.walk(function.node) if isinstance(node, ast.Return | ast.Yield)]
    return goes_into(function, kept.id, results) and not is_for_answers(context, function)


def _has_backward(context: RuleContext, function: Function) -> bool:
    return any(context.call_kind(call) is CallKind.BACKWARD and not call.keywords for call in function.calls)


def _detached(context: RuleContext, kept: ast.expr, value: ast.expr, *, may_be_safe: bool) -> Fix | None:
    """Safe of what backward runs on in the same step: its graph is gone, so nothing can differentiate it again."""
    function = context.function_of(value)
    losses = {e.id for e in differentiated(context, function) if isinstance(e, ast.Name)}
    is_loss = isinstance(value, ast.Name) and value.id in losses
    if not is_loss and (context.kind(value) is not Kind.TENSOR or _may_be_differentiated(context, kept, function)):
        return None
    source = f"{context.operand(value)}.detach()"
    return context.replace(value, source, "keep the number without its graph", safe=may_be_safe and is_loss)
