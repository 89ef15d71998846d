"""INF102 no-grad-not-inference-mode: pure inference under `no_grad`, which still tracks versions and views.

Finds       The first `torch.no_grad()` of a file that stands on a function, or around statements, that run a model for
            its answers alone: others of the file are changed likewise.
Why slow    Under no_grad each tensor still carries what autograd needs in case it comes back: version counters, views.
            Inference mode leaves that out.
Example     with torch.no_grad(): out = model(x)
Instead     with torch.inference_mode(): out = model(x)
Gain        up to a few hundredths where operators are small; nothing for large ones.
Fix         unsafe: tensors made in inference mode can't be used later where gradients are taken, nor be changed
            in place outside of it. Only in scripts that train nothing, of what hands out no tensors.
Source      PyTorch, "Autograd mechanics", on inference mode.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.escapes import leaves_block, returns_tensors
from whet_audit.finding import AddImport, Confidence, Fix, Gain, Hit, HotPath, Priority, ReplaceExpression
from whet_audit.gradients import SWITCHES
from whet_audit.hot_paths import INFERS, TRAINS
from whet_audit.inference import runs_forward, takes_gradients
from whet_audit.project import name_of
from whet_audit.project_words import is_script, trains
from whet_audit.rule_context import RuleContext

CODE = "INF102"
NAME = "no-grad-not-inference-mode"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.03, "small operators")
_SHARDED = ("fsdp", "fullyshardeddataparallel", "fully_shard", "deepspeed")
_CHANGES = re.compile(
    r"(^|_)(step|update|init|reset|ema|load|copy|merge|prune|quanti[sz]e|fuse|convert|clip|optim)|"
    r"(^|_)(export|trace|script|onnx|torchscript|tensorrt|profile|before|after|on|setup|calibrate|loss|distillation)(_|$)",
    re.I,
)
_MODEL = re.compile(r"\b(model|module|net|network|encoder|decoder)\b")
_ASKS = ("sample", "generate", "predict", "evaluate", "validate", "validation", "transcribe")
_WRITES = (
    "copy_",
    "mul_",
    "add_",
    "lerp_",
    "sub_",
    "fill_",
    "normal_",
    "uniform_",
    "zero_",
    "update_ema",
    "ema_update",
)


def check(context: RuleContext) -> Iterator[Hit]:
    """The first decorator or `with` statement that uses no_grad for inference."""
    if any(word in context.module.text.lower() for word in _SHARDED):
        return
    uses = [n for n in context.nodes(ast.Name, ast.Attribute) if isinstance(n, ast.Name | ast.Attribute)]
    for node in sorted((n for n in uses if _is_no_grad(context, n)), key=lambda n: n.lineno):
        parent = context.parent(node)
        used = parent if isinstance(parent, ast.Call) and parent.func is node else node
        user = context.parent(used)
        scope: ast.AST | None = None
        if isinstance(user, ast.FunctionDef) and used in user.decorator_list:
            scope = user
        elif isinstance(user, ast.withitem):
            scope = context.parent(user)
        if scope is None or not _infers(context, scope):
            continue
        yield Hit(
            at=used,
            message=f"{context.shown(used)} still tracks versions and views for gradients that are never taken",
            confidence=Confidence.LOW,
            gain=_GAIN,
            fix=_inference_mode(context, node, scope),
        )
        return


def _inference_mode(context: RuleContext, node: ast.Name | ast.Attribute, scope: ast.AST) -> Fix | None:
    if not is_script(context.module) or trains(context.project, context.module) or context.module.is_test:
        return None
    if context.module.imports.get("torch", "torch") != "torch":
        return None
    inner = context.module.function_of_node.get(scope)
    escapes = returns_tensors(context, inner) if inner is not None else True
    if isinstance(scope, ast.With):
        escapes = leaves_block(context, scope)
    if escapes:
        return None
    edits = (ReplaceExpression(context.span(node), "torch.inference_mode"), AddImport("torch"))
    return Fix("use inference mode", False, edits)


def _is_no_grad(context: RuleContext, node: ast.Name | ast.Attribute) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else node.id
    return last == "no_grad" and context.dotted(node) in SWITCHES


def _infers(context: RuleContext, scope: ast.AST) -> bool:
    """Whether a scope runs a model, writes to no parameters, and lies in no training step."""
    inner = context.module.function_of_node.get(scope)
    function = inner or context.function_of(scope)
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
    if any(name_of(call) in _WRITES for call in calls) or _CHANGES.search(function.name):
        return False
    if inner is not None and (takes_gradients(context, function) or function.name == "forward"):
        return False
    if inner is None and any(runs_forward(context, call) for call in function.calls if call.lineno > _end(scope)):
        return False  # its answers may go into a forward pass that is differentiated
    hot_paths = [context.hot(call) for call in calls]
    if any(hot is not None and hot.kind in TRAINS and not hot.guard for hot in hot_paths):
        return False
    if any(_is_asked(context, call, hot) for call, hot in zip(calls, hot_paths, strict=True)):
        return True
    is_main = inner is not None and _MODEL.search(context.source(scope)) is not None
    return bool(calls) and context.hot_paths.only_infers(function) and (is_main or inner is None)


def _end(scope: ast.AST) -> int:
    return getattr(scope, "end_lineno", 0)


def _is_asked(context: RuleContext, call: ast.Call, hot: HotPath | None) -> bool:
    if hot is not None and hot.kind in TRAINS:
        return name_of(call) in _ASKS
    if runs_forward(context, call) or context.call_kind(call) is CallKind.GENERATE:
        return hot is not None and (hot.kind in INFERS or bool(hot.guard))
    if hot is not None and hot.kind in INFERS:
        return context.hot_paths.runs_model(call, context.module)
    return False
