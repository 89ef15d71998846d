"""MOV106 repeated-transfer: what never changes is copied to the GPU in every step.

Finds       `x.to(device)` or `x.cuda()` in a step loop of a tensor or model that is not set in the loop, and
            `self.x.to(device)` in a forward pass of a plain attribute that is set in __init__ alone.
Why slow    The same bytes are copied again in every step, and the CPU waits for each copy.
Example     for x, y in loader: loss = criterion(model(x), y, weights.to(device))
Instead     weights = weights.to(device) before the loop; in a module, self.register_buffer("weights", weights)
Gain        the time of the copy; nothing on a CPU, or where the tensor is on the GPU already.
Fix         none: whether another part of the program needs it on the CPU is not known.
Source      PyTorch documentation of torch.nn.Module.register_buffer.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext
from whet_audit.transfers import is_worker, transfers
from whet_audit.waits import is_buffer

CODE = "MOV106"
NAME = "repeated-transfer"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "the time to copy what never changes; nothing on a CPU, or where it is on the GPU already")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def check(context: RuleContext) -> Iterator[Hit]:
    """Copies whose source is bound outside of the loop, or once for the object."""
    for call, moved in transfers(context):
        value = context.value(moved)
        if value.kind not in (Kind.TENSOR, Kind.MODEL) or value.device == "gpu" or not value.is_sure:
            continue
        hot = context.hot(call)
        if hot is None or hot.guard or is_worker(hot.kind):
            continue
        if isinstance(moved, ast.Name) and hot.kind == HeatKind.FORWARD:
            is_same = value.kind is Kind.TENSOR and _names_attribute(context, moved)
        elif isinstance(moved, ast.Name):
            is_same = hot.loop_line > 0 and not hot.via and _is_invariant(context, call, moved)
        else:
            is_same = value.kind is Kind.TENSOR and hot.kind == HeatKind.FORWARD and _is_set_once(context, moved)
        if not is_same or _is_kept(context, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} moves in every step what never changes",
            confidence=Confidence.MEDIUM,
            priority=Priority.LOW if value.kind is Kind.MODEL else None,
            gain=_GAIN,
        )


def _is_invariant(context: RuleContext, call: ast.Call, name: ast.Name) -> bool:
    """Whether a name is bound in the function, and nowhere in the loops around the call."""
    bindings = context.function_of(call).bindings.get(name.id)
    if not bindings:
        return False
    loops = [up for up in context.ancestors(call) if isinstance(up, _LOOPS)]
    outer = loops[-1] if loops else None
    return outer is not None and all(outer is not b.node and outer not in context.ancestors(b.node) for b in bindings)


def _is_set_once(context: RuleContext, moved: ast.expr) -> bool:
    """Whether a tensor is a plain attribute of self, set in __init__ alone."""
    cls = context.class_of(moved)
    if not isinstance(moved, ast.Attribute) or getattr(moved.value, "id", "") != "self" or cls is None:
        return False
    bindings = context.project.attribute(cls, moved.attr)
    homes = {context.module.function_of(b.node).name for b in bindings if b.node in context.module.parents}
    is_parameter = any(b.value is not None and "Parameter(" in context.source(b.value) for b in bindings)
    return homes == {"__init__"} and not is_parameter and not is_buffer(context, moved)


def _names_attribute(context: RuleContext, name: ast.Name) -> bool:
    """Whether a name is another one for an attribute that is set once."""
    bindings = context.function_of(name).bindings.get(name.id, ())
    values = [binding.value for binding in bindings if binding.line < name.lineno]
    return any(isinstance(value, ast.Attribute) and _is_set_once(context, value) for value in values)


def _is_kept(context: RuleContext, call: ast.Call) -> bool:
    """Whether the moved tensor takes the place of the old one, so that the next call copies nothing."""
    statement = context.statement(call)
    moved = call.func.value if isinstance(call.func, ast.Attribute) else call
    if isinstance(statement, ast.Assign):
        return any(ast.unparse(target) == ast.unparse(moved) for target in statement.targets)
    return isinstance(statement, ast.Expr) and statement.value is call and context.kind(moved) is Kind.TENSOR
