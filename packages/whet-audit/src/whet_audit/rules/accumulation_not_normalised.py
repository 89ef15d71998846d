"""MEM104 accumulation-not-normalised: gradients of several micro-steps are summed and never divided by their number.

Finds       `optimizer.step()` under `if step % n == 0` with `backward()` in every micro-step, and no division by n.
Why slow    The step grows with n, so n can't be raised to save memory without another learning rate: people stay with
            the small batch, or half precision overflows.
Example     loss.backward(); if step % accum == 0: optimizer.step(); optimizer.zero_grad()
Instead     (loss / accum).backward()
Gain        none in time; it lets the batch be split for memory at the same result.
Fix         unsafe: it changes the size of the gradients, as intended. None where the program shows another division:
            by a number of tokens, or of gradients by hand.
Source      PyTorch AMP examples, "Gradient accumulation".
"""

import ast
from collections.abc import Iterator

from whet_audit.accumulation import accumulations, is_named_so, last_name
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.project_words import mentions
from whet_audit.rule_context import RuleContext

CODE = "MEM104"
NAME = "accumulation-not-normalised"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.0, "correctness and memory, not time")
_SCALED = r"(?i)tokens\b|token_count|scale_grad|\.grad\b|num_items|normali[sz]er|loss_scale|grad_scale|world_size"
_DIVIDES_ITSELF = ("accelerator", "fabric", "engine", "trainer")


def check(context: RuleContext) -> Iterator[Hit]:
    """Accumulating loops in modules that nowhere divide by the number of micro-steps."""
    for found in accumulations(context):
        direct = [call for call in found.backwards if context.call_kind(call) is CallKind.BACKWARD]
        if not direct or _is_divided(context, found.every) or not _sums_means(context):
            continue
        call = direct[0]
        owner = ast.unparse(call.func).lower()
        if any(word in owner for word in _DIVIDES_ITSELF):
            continue
        yield Hit(
            at=call,
            hot=context.hot(call),
            message=(
                f"{context.shown(call)} adds up over {context.shown(found.every)} "
                f"micro-steps and is not divided by them"
            ),
            confidence=Confidence.MEDIUM if is_named_so(found.every) else Confidence.LOW,
            gain=_GAIN,
            fix=_divided(context, call, found.every),
        )


def _is_divided(context: RuleContext, every: ast.expr) -> bool:
    name = last_name(every)
    for node in context.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div | ast.Mult) and _mentions(node.right, name, every):
            return True
    for update in context.nodes(ast.AugAssign):
        if isinstance(update.op, ast.Div | ast.Mult) and _mentions(update.value, name, every):
            return True
    if any(True for _ in context.calls("scale_grads", "scale_grads_", "unscale_and_divide")):
        return True  # by the number of tokens, all at once
    return any(_mentions(call, name, every) for call in context.calls("div", "div_", "mul_", "scale_"))


def _mentions(expression: ast.expr, name: str, every: ast.expr) -> bool:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and (
            last_name(node) == name or is_named_so(node)
        ):
            return True
        if isinstance(every, ast.Constant) and isinstance(node, ast.Constant) and node.value == every.value:
            return True
    return False


def _sums_means(context: RuleContext) -> bool:
    """Whether losses are means, as they are by default: sums are meant to add up."""
    reductions = (context.constant(k.value) for k in context.nodes(ast.keyword) if k.arg == "reduction")
    return "sum" not in reductions


def _divided(context: RuleContext, call: ast.Call, every: ast.expr) -> Fix | None:
    loss = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(loss, ast.Name) or call.args:
        return None
    if mentions(context.project, context.module, _SCALED):
        return None
    source = f"({loss.id} / {context.operand(every)})"
    return context.replace(loss, source, "take the mean over the micro-steps", safe=False)
