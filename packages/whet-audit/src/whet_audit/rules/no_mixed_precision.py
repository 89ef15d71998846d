"""PRE101 no-mixed-precision: a training loop for GPUs that computes all in float32.

Finds       A training loop or step with a forward pass, in a file that speaks of GPUs but shows neither autocast, nor
            half precision, nor a framework that would turn it on. Apex alone, no longer maintained, counts as none.
Why slow    Tensor cores multiply bfloat16 several times faster than float32, and activations take half the memory.
Example     loss = criterion(model(x), y); loss.backward()
Instead     with torch.autocast("cuda", dtype=torch.bfloat16): loss = criterion(model(x), y)
Gain        large for matrix products and convolutions on GPUs since Ampere; nothing for small models.
Fix         unsafe: results change in the third digit; losses must be looked at. None where numpy reads what comes out,
            which knows no bfloat16, nor beside operators that do not take it.
Source      PyTorch documentation, "Automatic Mixed Precision package".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.finding import AddImport, Confidence, Fix, Gain, Hit, HotPath, Priority, WrapStatements
from whet_audit.hot_paths import TRAINS, HeatKind, inside
from whet_audit.precision import is_mixed, is_only_apex, speaks_of_half
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "PRE101"
NAME = "no-mixed-precision"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.5, "a GPU with tensor cores, and a model large enough to keep them busy")
_UNSAFE = re.compile(
    r"BCELoss|binary_cross_entropy\(|create_graph|autograd\.grad\(|float64|\bfft\b|stft|ctc_?loss|CTCLoss|scatter|index_(add|copy|put)|opacus|PrivacyEngine|cholesky|\bmps\b|\.double\(\)|\bLBFGS\b|linalg"
)
_NOT_FOR_HALF = re.compile(
    r"^\s*(import|from) (gym|gymnasium|stable_baselines3|pfrl|torch_geometric|e3nn|pyro|gpytorch|botorch)\b"
    r"|\bfloat64\b|\.double\(\)|\bLBFGS\b|\b(forces|virials?)\b",
    re.M,
)
_BESIDE = re.compile(r"augment|transform|normali[sz]e|preprocess|teacher|metric|embed_?fn", re.IGNORECASE)
_KEPT = (ast.Assign, ast.AugAssign, ast.AnnAssign)


def check(context: RuleContext) -> Iterator[Hit]:
    """The first forward pass in a training loop or step: one decision for the whole file."""
    learning = dict.fromkeys(context.function_of(call) for call in context.calls("backward", "manual_backward"))
    if not learning or not context.mentions_gpu or context.module.is_test or is_mixed(context.module):
        return
    is_apex = is_only_apex(context.module)
    if (speaks_of_half(context.module) and not is_apex) or _NOT_FOR_HALF.search(context.module.text):
        return
    for function in learning:
        if any(is_mixed(at.module) for at, _ in context.project.callers(function)):
            continue
        for call in sorted(function.calls, key=lambda one: (one.lineno, one.col_offset)):
            if (
                context.call_kind(call) is not CallKind.MODEL
                or not call.args + call.keywords
                or _BESIDE.search(name_of(call))
            ):
                continue
            hot = context.hot(call)
            if hot is None or HeatKind(hot.kind) not in TRAINS or hot.guard or not _learns(context, call):
                continue
            yield _hit(context, call, hot, is_apex=is_apex)
            return


def _learns(context: RuleContext, call: ast.Call) -> bool:
    """Whether gradients flow through the forward pass."""
    for up in inside(context.module, call):
        if isinstance(up, ast.With) and any("no_grad" in ast.unparse(i.context_expr) for i in up.items):
            return False
    return True


def _hit(context: RuleContext, call: ast.Call, hot: HotPath, *, is_apex: bool) -> Hit:
    words = "but for apex, which is no longer maintained" if is_apex else "no mixed precision in sight"
    return Hit(
        at=call,
        hot=hot,
        message=f"{context.shown(call)} runs in float32: {words}",
        confidence=Confidence.LOW if is_apex else Confidence.MEDIUM,
        gain=_GAIN,
        fix=None if is_apex else _autocast(context, call),
    )


def _autocast(context: RuleContext, call: ast.Call) -> Fix | None:
    """Wrap the statements from the forward pass to the one before what the backward pass is in."""
    device = _device_type(context, call)
    first = context.statement(call)
    parent = context.parent(first)
    block = getattr(parent, "body", [])
    if device is None or _UNSAFE.search(context.module.text) or not isinstance(block, list) or first not in block:
        return None
    if context.module.imports.get("torch") != "torch" or not isinstance(first, _KEPT):
        return None
    last: ast.stmt = first
    for statement in block[block.index(first) + 1 :]:
        if any(context.call_kind(c) is CallKind.BACKWARD for c in ast.walk(statement) if isinstance(c, ast.Call)):
            header = f"with torch.autocast({device}, dtype=torch.bfloat16):"
            if _goes_to_numpy(context, block[block.index(first) : block.index(last) + 1]):
                return None
            edits = (WrapStatements(context.span(first), context.span(last), header), AddImport("torch"))
            return Fix("run the forward pass and the loss in mixed precision", False, edits)
        if isinstance(statement, _KEPT):
            last = statement
        elif not (isinstance(statement, ast.Expr) and _is_zero_grad(statement.value)):
            return None
    return None


def _goes_to_numpy(context: RuleContext, wrapped: list[ast.stmt]) -> bool:
    """Whether numpy is given something that the statements bind."""
    bound = {n.id for s in wrapped for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    reads = (call for call in context.function_of(wrapped[0]).calls if name_of(call) in ("numpy", "asarray", "array"))
    return any(isinstance(n, ast.Name) and n.id in bound for call in reads for n in ast.walk(call))


def _is_zero_grad(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and name_of(e) == "zero_grad"


def _device_type(context: RuleContext, call: ast.Call) -> str | None:
    """The source of the device's type, as the function that makes the step names its device."""
    for other in context.function_of(call).calls:
        if not isinstance(other.func, ast.Attribute):
            continue
        if other.func.attr == "cuda":
            return '"cuda"'
        target = context.keyword(other, "device", 0) if other.func.attr == "to" else None
        if target is not None and isinstance(target, ast.Name | ast.Attribute) and context.kind(target) is Kind.DEVICE:
            return f"torch.device({context.source(target)}).type"
        if isinstance(target, ast.Constant) and str(target.value).startswith("cuda"):
            return '"cuda"'
    return None
