"""PRE105 fp16-without-scaler: training in float16 whose small gradients vanish.

Finds       autocast to float16 (the default on CUDA) around the forward pass of a training loop, or `.half()` of the
            model that is trained, in a file without a loss scaler.
Why slow    Gradients below 6e-8 become zero and large ones infinite: steps are spent without learning from them.
Example     with torch.autocast("cuda"): loss = model(x); loss.backward()
Instead     dtype=torch.bfloat16, which needs no scaler, or torch.amp.GradScaler("cuda").
Gain        no time per step; steps that count.
Fix         unsafe: bfloat16 in place of float16.
Source      PyTorch documentation, "Automatic Mixed Precision examples", gradient scaling.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.precision import scales_loss
from whet_audit.rule_context import RuleContext, is_known

CODE = "PRE105"
NAME = "fp16-without-scaler"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "steps lost to gradients that vanish; no time per step")
_AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")


def check(context: RuleContext) -> Iterator[Hit]:
    """Autocast in training code, then models converted as a whole."""
    if ".backward(" not in context.module.text or scales_loss(context.module):
        return
    for statement in context.nodes(ast.With):
        for item in statement.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and context.dotted(call.func) in _AUTOCAST and _is_float16(context, call):
                yield from _autocast(context, statement, call)
    for call in context.calls("half"):
        if (
            isinstance(call.func, ast.Attribute)
            and context.kind(call.func.value) is Kind.MODEL
            and _is_trained(context, call)
        ):
            message = f"{context.shown(call)} trains in float16 without a loss scaler"
            yield Hit(at=call, message=message, confidence=Confidence.LOW, gain=_GAIN)


def _autocast(context: RuleContext, statement: ast.With, call: ast.Call) -> Iterator[Hit]:
    models = [c for c in ast.walk(statement) if isinstance(c, ast.Call) and context.call_kind(c) is CallKind.MODEL]
    hot = context.hot(models[0]) if models and _calls_backward(context, statement) else None
    if hot is None or hot.guard or HeatKind(hot.kind) not in TRAINS:
        return
    message = f"{context.shown(call)} trains in float16 without a loss scaler"
    yield Hit(at=call, hot=hot, message=message, confidence=Confidence.MEDIUM, gain=_GAIN, fix=_bfloat16(context, call))


def _calls_backward(context: RuleContext, statement: ast.With) -> bool:
    """Whether the same function has a `loss.backward()`: a wrapper's `backward(loss)` may scale the loss."""
    calls = (call for call in context.function_of(statement).calls if context.call_kind(call) is CallKind.BACKWARD)
    return any(not call.args for call in calls)


def _is_float16(context: RuleContext, call: ast.Call) -> bool:
    """Whether the type is float16, said or by default; False where the device or the type is not known."""
    enabled = context.keyword(call, "enabled")
    if enabled is not None and context.constant(enabled) is False:
        return False
    is_cuda_only = (context.dotted(call.func) or "").startswith("torch.cuda")
    dtype = context.keyword(call, "dtype", 1)
    if dtype is not None:
        return context.dotted(dtype) in ("torch.float16", "torch.half")
    device = context.constant(context.keyword(call, "device_type", 0))
    return is_cuda_only or (is_known(device) and str(device).startswith("cuda"))


def _bfloat16(context: RuleContext, call: ast.Call) -> Fix | None:
    if context.module.imports.get("torch") != "torch" or len(call.args) > 1:
        return None
    return context.set_keyword(call, "dtype", "torch.bfloat16", "use bfloat16, which needs no scaler", safe=False)


def _is_trained(context: RuleContext, call: ast.Call) -> bool:
    """Whether the optimiser gets the parameters of the model by the same name."""
    assert isinstance(call.func, ast.Attribute)
    name = context.source(call.func.value)
    return any(
        isinstance(other.func, ast.Attribute)
        and context.source(other.func.value) == name
        and any(context.kind(up) is Kind.OPTIMIZER for up in context.ancestors(other) if isinstance(up, ast.Call))
        for other in context.calls("parameters")
    )
