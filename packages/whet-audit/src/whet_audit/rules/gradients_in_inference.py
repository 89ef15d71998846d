"""INF101 gradients-in-inference: a model is run for its answers alone, and gradients are recorded all the same.

Finds       a model called in an evaluation, prediction or generation loop or function, with no `no_grad` or
            `inference_mode` around it, on its function, or in its callers.
Why slow    Every operator records itself and keeps its inputs: memory as in training, and kernels that would have been
            skipped or fused.
Example     model.eval(); for x, y in loader: correct += (model(x).argmax(1) == y).sum()
Instead     with torch.inference_mode(): ...
Gain        a few hundredths to a quarter of the time on small operators; most of the activations' memory.
Fix         unsafe, by no_grad, whose results may still be fed to what is trained. Only of functions that hand out no
            tensors, of evaluations, and of scripts that train nothing: others may be differentiated by their callers.
Source      PyTorch, "Autograd mechanics", on inference mode.
"""

import ast
from collections.abc import Iterator

from whet_audit.answers import is_for_answers
from whet_audit.finding import AddDecorator, AddImport, Confidence, Fix, Gain, Hit, HotPath, Priority
from whet_audit.gradients import is_off
from whet_audit.hot_paths import INFERS, HeatKind
from whet_audit.inference import is_hook, runs_forward, takes_gradients
from whet_audit.placement import is_of_other_framework
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

CODE = "INF101"
NAME = "gradients-in-inference"
PRIORITY = Priority.HIGH
PREVIEW = True
_GAIN = Gain(0.02, 0.25, "small operators, bound by their launch; memory more than time for large ones")


def check(context: RuleContext) -> Iterator[Hit]:
    """The first model call of each function that infers and nowhere turns gradients off."""
    seen: set[Function] = set()
    for call in context.nodes(ast.Call):
        if not runs_forward(context, call) or "YOLO(" in context.module.text:
            continue
        function = context.function_of(call)
        if function in seen:
            continue
        hot = context.hot(call)
        if hot is None or hot.kind not in INFERS or not _wants_no_gradients(context, function, hot):
            continue
        if is_off(context, call) or is_of_other_framework(context, call):
            continue
        seen.add(function)
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} records a graph that nothing differentiates",
            confidence=Confidence.HIGH if hot.kind in (HeatKind.INFERENCE, HeatKind.DENOISING) else Confidence.MEDIUM,
            gain=_GAIN,
            fix=_decorated(context, function),
        )


def _wants_no_gradients(context: RuleContext, function: Function, hot: HotPath) -> bool:
    if is_hook(context, function) or takes_gradients(context, function):
        return False
    if hot.kind == HeatKind.GENERATION and function.name == "generate":
        return True
    if hot.kind == HeatKind.INFERENCE_CALL or function.cls is not None:
        return context.hot_paths.only_infers(function)
    return True


def _decorated(context: RuleContext, function: Function) -> Fix | None:
    """Only for functions whose results nobody differentiates. A generator would leak the mode to its caller."""
    if not isinstance(function.node, ast.FunctionDef) or context.module.is_test:
        return None
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function.node)):
        return None
    if context.module.imports.get("torch", "torch") != "torch" or not is_for_answers(context, function):
        return None
    edits = (AddDecorator(context.span(function.node), "torch.no_grad()"), AddImport("torch"))
    return Fix("record no graph", False, edits)
