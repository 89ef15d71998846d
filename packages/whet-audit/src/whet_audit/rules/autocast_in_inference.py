"""PRE103 autocast-in-inference: weights cast to half precision again in every call.

Finds       `with autocast(...)` around a forward pass in an inference loop, in a file that does not train.
Why slow    What autocast has cast is dropped where its block ends (under inference_mode, at once): a block in each step
            reads the weights in float32 and writes them in half, each time.
Example     with torch.no_grad(), torch.autocast("cuda"): for x in loader: model(x)
Instead     model = model.to(torch.bfloat16) once, and inputs in the same type.
Gain        the casts: much where batches are small, little where they are large; half the memory of the weights.
Fix         none: layers that autocast keeps in float32 need a look.
Source      PyTorch documentation, torch.autocast, `cache_enabled`.
"""

import ast
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.rule_context import RuleContext, is_known

CODE = "PRE103"
NAME = "autocast-in-inference"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.2, "small batches, for which reading and casting weights is much of the step")
_AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast_mode.autocast")


def check(context: RuleContext) -> Iterator[Hit]:
    """Autocast around model calls, where nothing in the file trains."""
    if "autocast" not in context.module.text or ".backward(" in context.module.text:
        return
    if any(HeatKind(kind) in TRAINS for kind in context.hot_paths.loops.values()):
        return  # the weights are those of a model in training, or may be
    for statement in context.nodes(ast.With):
        for item in statement.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or context.dotted(call.func) not in _AUTOCAST or _is_off(context, call):
                continue
            if any(isinstance(node, ast.For | ast.While) for node in ast.walk(statement)):
                continue  # entered once, it keeps what it has cast
            model_call = next((c for c in ast.walk(statement) if isinstance(c, ast.Call) and _runs(context, c)), None)
            hot = context.hot(model_call) if model_call is not None else None
            if model_call is None or hot is None or hot.guard or HeatKind(hot.kind) not in INFERS:
                continue
            is_loop = hot.kind != HeatKind.INFERENCE_CALL
            yield Hit(
                at=call,
                hot=hot,
                message=(
                    f"{context.shown(call)} casts the weights of {context.shown(model_call.func)} again in every call"
                ),
                confidence=Confidence.MEDIUM if is_loop else Confidence.LOW,
                gain=_GAIN,
            )


def _runs(context: RuleContext, call: ast.Call) -> bool:
    return context.call_kind(call) is CallKind.MODEL


def _is_off(context: RuleContext, call: ast.Call) -> bool:
    enabled = context.keyword(call, "enabled")
    value = context.constant(enabled)
    return enabled is not None and is_known(value) and not value
