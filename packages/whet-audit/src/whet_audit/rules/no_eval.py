"""INF105 no-eval: a model that was made for training is evaluated without `eval()`.

Finds       an evaluation loop over a model with dropout or batch normalisation, in a project that nowhere puts a model
            in eval mode.
Why slow    Dropout draws and multiplies masks, batch normalisation takes statistics and writes them, and neither can be
            folded or fused. The results are wrong, too.
Example     with torch.no_grad(): for x, y in loader: out = model(x)
Instead     model.eval() before the loop, and model.train() after it
Gain        a few hundredths; correct results first of all.
Fix         unsafe: results change, as intended. `train()` after the loop brings the mode back, as nothing else has
            changed it.
Source      torch.nn.Module.eval; PyTorch, "Autograd mechanics", on evaluation mode.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Fix, Gain, Hit, InsertAfter, InsertBefore, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.inference import is_hook, runs_forward, takes_gradients
from whet_audit.project import root_name
from whet_audit.rule_context import RuleContext
from whet_audit.source import LoopNode

CODE = "INF105"
NAME = "no-eval"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.05, "layers that differ between training and evaluation; correctness is what is at stake")
_EVAL = re.compile(
    r"\.eval\(\)|\.train\((mode=)?(False|training|was_training|mode|is_train)|eval_mode|\.training = False"
)
_DIFFERS = re.compile(r"dropout|batch_?norm", re.IGNORECASE)
_IN_EVAL = ("from_pretrained", "torch.hub", "torchvision.models", "SentenceTransformer", "pipeline(", "jit.load")


def check(context: RuleContext) -> Iterator[Hit]:
    """Inference loops of modules without any eval()."""
    if any(_EVAL.search(module.text) for module in context.project.modules):
        return
    if any(word in context.module.text for word in _IN_EVAL):
        return
    for loop in context.loops(HeatKind.INFERENCE):
        function = context.function_of(loop)
        if is_hook(context, function) or takes_gradients(context, function):
            continue
        call = _model_call(context, loop)
        if call is not None:
            yield Hit(
                at=call,
                hot=context.hot(call),
                message=f"{context.shown(call.func)} is evaluated in training mode: nothing calls eval()",
                confidence=Confidence.MEDIUM,
                gain=_GAIN,
                fix=_in_eval_mode(context, call, loop),
            )


def _model_call(context: RuleContext, loop: LoopNode) -> ast.Call | None:
    """The loop's first call of a model that has, or may have, layers that differ in training."""
    for call in ast.walk(loop):
        if isinstance(call, ast.Call) and runs_forward(context, call):
            value = context.value(call.func)
            if _is_handed_over(context, call.func):
                continue
            if value.kind is Kind.MODEL and value.cls is not None:
                source = value.cls.module.text
                return call if _DIFFERS.search(source) else None
            if value.dotted and value.dotted.startswith("torch.nn."):
                return None
            return call
    return None


def _is_handed_over(context: RuleContext, model: ast.expr) -> bool:
    """Whether it is an attribute of what the function was given: whoever put it there sees to its mode."""
    root = root_name(model)
    given = [argument.arg for argument in context.function_of(model).arguments]
    return isinstance(model, ast.Attribute) and root in given and root not in ("self", "cls")


def _in_eval_mode(context: RuleContext, call: ast.Call, loop: LoopNode) -> Fix | None:
    value = context.value(call.func)
    if not isinstance(call.func, ast.Name) or value.kind is not Kind.MODEL or not value.is_sure:
        return None
    if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Raise) for node in ast.walk(loop)):
        return None
    name, at = call.func.id, context.span(loop)
    edits = (InsertBefore(at, f"{name}.eval()"), InsertAfter(at, f"{name}.train()"))
    return Fix("evaluate in eval mode", False, edits)
