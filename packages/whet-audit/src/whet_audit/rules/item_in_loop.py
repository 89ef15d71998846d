"""SYN101 item-in-loop: a tensor's value is read in every step, and the CPU waits until the GPU has caught up.

Finds       `x.item()`, and `float(x)` or `int(x)` of a tensor, in a step loop, a forward pass, or in what they call.
Why slow    The value is not there before all kernels queued so far have run. Then the GPU idles until new ones come.
Example     for x, y in loader: ...; total += loss.item()
Instead     one `.tolist()` of all that is read, stacked; a sum of `loss.detach()`, read after the loop or every hundred
            steps; for sizes, `x.shape`.
Gain        up to the share of the step that the CPU needs to queue its kernels; nothing on a CPU.
Fix         unsafe, and only of a running sum in a variable: it is a tensor within the loop, summed in the tensor's
            precision, and a number again after it. What prints it within the loop sees a tensor.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import AddImport, Fix, Hit, InsertAfter, Priority, ReplaceExpression
from whet_audit.growth import loop_around
from whet_audit.hot_paths import TRAINS
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import LoopNode
from whet_audit.waits import WAIT_GAIN, copied_in, is_tensor_value, wait_for

CODE = "SYN101"
NAME = "item-in-loop"
PRIORITY = Priority.MEDIUM
_SHOW = frozenset("print format set_postfix set_description".split())
_WAITED_FOR = frozenset("nonzero argwhere tolist numpy unique".split())  # other rules report these


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of item() on what may be a tensor, and float() or int() of what is one."""
    for call in context.calls("item"):
        if isinstance(call.func, ast.Attribute) and not call.args:
            yield from _hit(context, call, call.func.value, known=False)
    for call in context.calls("float", "int"):
        if not isinstance(call.func, ast.Name) or len(call.args) != 1 or not is_tensor_value(context, call.args[0]):
            continue
        value = context.value(call.args[0])
        hot = context.hot(call)
        if value.is_sure or (hot is not None and hot.kind in TRAINS):
            yield from _hit(context, call, call.args[0], known=True)


def _hit(context: RuleContext, call: ast.Call, tensor: ast.expr, *, known: bool) -> Iterator[Hit]:
    if any(isinstance(link, ast.Call) and name_of(link) in _WAITED_FOR for link in _links(tensor)):
        return
    tensor = copied_in(context, tensor) or tensor
    wait = wait_for(context, call, tensor, known=known)
    if wait is None:
        return
    yield wait.hit(
        call,
        f"{context.shown(call)} makes the CPU wait for the GPU in every step",
        WAIT_GAIN,
        fix=_detached(context, call, tensor),
    )


def _links(expression: ast.expr) -> Iterator[ast.expr]:
    while isinstance(expression, ast.Attribute | ast.Call | ast.Subscript):
        yield expression
        expression = expression.func if isinstance(expression, ast.Call) else expression.value


def _detached(context: RuleContext, call: ast.Call, tensor: ast.expr) -> Fix | None:
    """Only for a running sum that the loop does nothing else with but show it: what else reads it needs a number."""
    parent = context.parent(call)
    if not isinstance(parent, ast.AugAssign) or not isinstance(parent.op, ast.Add) or parent.value is not call:
        return None
    if not isinstance(call.func, ast.Attribute) or tensor is not call.func.value:
        return None
    loop = loop_around(context, call)
    if loop is None or not isinstance(parent.target, ast.Name) or not _is_only_shown(context, parent, loop):
        return None
    if context.module.imports.get("torch", "torch") != "torch":
        return None
    name = parent.target.id
    edits = (
        ReplaceExpression(context.span(call), f"{context.operand(tensor)}.detach()"),
        InsertAfter(context.span(loop), f"{name} = torch.as_tensor({name}).item()"),
        AddImport("torch"),
    )
    return Fix("sum on the GPU; read the sum after the loop", False, edits)


def _is_only_shown(context: RuleContext, update: ast.AugAssign, loop: LoopNode) -> bool:
    """Whether a sum starts as a number before the loop, and the loop only adds to it and shows it."""
    assert isinstance(update.target, ast.Name)
    name, function = update.target.id, context.function_of(update)
    bindings = [binding for binding in function.bindings.get(name, ()) if binding.how != "update"]
    if not bindings or not all(isinstance(binding.value, ast.Constant) for binding in bindings):
        return False
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Global) for node in ast.walk(loop)):
        return False
    for node in ast.walk(loop):
        if not isinstance(node, ast.Name) or node.id != name or context.parent(node) is update:
            continue
        if isinstance(node.ctx, ast.Load) and not any(_shows(up) for up in context.ancestors(node)):
            return False
        if isinstance(node.ctx, ast.Store) and isinstance(context.parent(node), ast.AugAssign):
            return False
    return True


def _shows(node: ast.AST) -> bool:
    if isinstance(node, ast.FormattedValue):
        return True
    return isinstance(node, ast.Call) and name_of(node) in _SHOW
