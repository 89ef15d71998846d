"""INF101 gradients-in-inference: a model is run for its answers alone, and gradients are recorded all the same.

Finds       a model called in an evaluation, prediction or generation loop or function, with no `no_grad` or
            `inference_mode` around it, on its function, or in its callers.
Why slow    Every operator records itself and keeps its inputs: memory as in training, and kernels that would have been
            skipped or fused.
Example     model.eval(); for x, y in loader: correct += (model(x).argmax(1) == y).sum()
Instead     with torch.inference_mode(): ...
Gain        a few hundredths to a quarter of the time on small operators; most of the activations' memory.
Fix         unsafe: results made so can't take part in a later backward pass.
Source      PyTorch, "Autograd mechanics", on inference mode.
"""

import ast
from collections.abc import Iterator

from whet.auditor.finding import AddDecorator, AddImport, Confidence, Edit, Fix, Gain, Hit, Hot, Priority
from whet.auditor.gradients import is_off
from whet.auditor.heat import INFERS, HeatKind
from whet.auditor.inference import is_hook, only_infers, runs_forward, takes_gradients
from whet.auditor.placement import is_of_other_framework
from whet.auditor.source import Function
from whet.auditor.view import View

CODE = "INF101"
NAME = "gradients-in-inference"
PRIORITY = Priority.HIGH
_GAIN = Gain(0.02, 0.25, "small operators, bound by their launch; memory more than time for large ones")


def check(view: View) -> Iterator[Hit]:
    """The first model call of each function that infers and nowhere turns gradients off."""
    seen: set[Function] = set()
    for call in view.nodes(ast.Call):
        if not runs_forward(view, call) or "YOLO(" in view.module.text:
            continue
        function = view.function_of(call)
        if function in seen:
            continue
        hot = view.hot(call)
        if hot is None or hot.kind not in INFERS or not _wants_no_gradients(view, function, hot):
            continue
        if is_off(view, call) or is_of_other_framework(view, call):
            continue
        seen.add(function)
        yield Hit(
            at=call,
            hot=hot,
            message=f"{view.shown(call)} records a graph that nothing differentiates",
            confidence=Confidence.HIGH if hot.kind == HeatKind.INFERENCE else Confidence.MEDIUM,
            gain=_GAIN,
            fix=_decorated(view, function),
        )


def _wants_no_gradients(view: View, function: Function, hot: Hot) -> bool:
    if is_hook(view, function) or takes_gradients(view, function):
        return False
    if hot.kind == HeatKind.GENERATION and function.name == "generate":
        return True
    if hot.kind == HeatKind.INFERENCE_CALL or function.cls is not None:
        return only_infers(view, function)
    return True


def _decorated(view: View, function: Function) -> Fix | None:
    """Only for functions that give their results back at once: a generator would leak the mode to its caller."""
    if not isinstance(function.node, ast.FunctionDef):
        return None
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function.node)):
        return None
    edits: list[Edit] = [AddDecorator(view.span(function.node), "torch.inference_mode()")]
    if "torch" not in view.module.imports:
        edits.append(AddImport("torch"))
    return Fix("record no graph", False, tuple(edits))
