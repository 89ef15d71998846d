"""MEM108 deep-copy-in-loop: a model or its state is copied whole in every step.

Finds       `copy.deepcopy(model)` and `copy.deepcopy(model.state_dict())` in a step loop, under no condition.
Why slow    All weights are allocated and copied anew, one by one, in every step.
Example     for batch in loader: ...; previous = copy.deepcopy(model.state_dict())
Instead     one copy before the loop, and `torch._foreach_copy_` or `load_state_dict` into it where it has to follow.
Gain        the time to copy the weights, more for models of many small tensors.
Fix         none: what the copy is for decides.
Source      PyTorch, "Saving and loading models"; copy.deepcopy.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "MEM108"
NAME = "deep-copy-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.01, 0.2, "a copy of all weights in every step")
_KEPT = re.compile(r"best|improve|<|>", re.IGNORECASE)
_LOOPS = (HeatKind.TRAINING, HeatKind.INFERENCE, HeatKind.GENERATION, HeatKind.DENOISING, HeatKind.TRAINING_STEP)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of deepcopy of a model or a state."""
    for call in context.calls_to("copy.deepcopy"):
        if not call.args or not _is_weights(context, call.args[0]):
            continue
        hot = context.hot(call)
        if hot is None or hot.guard or hot.kind not in _LOOPS or _is_conditional(context, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} copies all weights in every step",
            confidence=Confidence.HIGH if context.value(call.args[0]).is_sure else Confidence.MEDIUM,
            gain=_GAIN,
        )


def _is_weights(context: RuleContext, copied: ast.expr) -> bool:
    if isinstance(copied, ast.Call) and isinstance(copied.func, ast.Attribute) and copied.func.attr == "state_dict":
        return True
    return context.kind(copied) is Kind.MODEL


def _is_conditional(context: RuleContext, call: ast.Call) -> bool:
    """Whether it is copied when something got better, or is not there yet."""
    for up in context.ancestors(call):
        if isinstance(up, ast.For | ast.While | ast.FunctionDef):
            return False
        if isinstance(up, ast.If) and (_KEPT.search(context.source(up.test)) or "None" in context.source(up.test)):
            return True
    return False
