"""CMP119 repeated-work-in-loop: the same tensors computed again in every step from what never changes.

Finds       In a step loop, a call of a model, encoder or tokenizer, or a chain of tensor operations of weight (matmul,
            softmax, normalize, cdist, triu, meshgrid), whose inputs are bound before the loop and not touched in it.
Why slow    Its result is the same each time.
Example     for image in loader: text = F.normalize(model.encode_text(prompts), dim=-1); ...
Instead     text = F.normalize(model.encode_text(prompts), dim=-1); for image in loader: ...
Gain        the work's share of the step, all but once: from nothing for a mask to half of it for an encoder.
Fix         none: whether the loop changes what the work reads in ways not seen here must be judged.
Source      PyTorch performance tuning guide; loop-invariant code motion, Aho et al., "Compilers", 9.5.
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind
from whet_audit.dataflow import last_name, names_bound_in, names_in
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.project import root_name
from whet_audit.rule_context import RuleContext
from whet_audit.source import LoopNode

CODE = "CMP119"
NAME = "repeated-work-in-loop"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "from a mask (nothing) to a frozen encoder (a third of the step)")
_WORK = frozenset(
    (
        "matmul softmax normalize cdist triu tril meshgrid einsum bmm inverse svd eigh cholesky hann_window "
        "encode_text encode_prompt encode_image get_text_features get_image_features linspace kron outer fft rfft"
    ).split()
)
_RANDOM = frozenset(
    "rand randn randint randperm normal multinomial bernoulli sample dropout empty rand_like next".split()
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls in step loops of which every name is bound before the loop."""
    for loop in context.loops():
        if isinstance(loop, ast.While):
            continue
        changed = _changed(loop)
        trains = context.hot_paths.loops[loop] in TRAINS
        for call in _calls(loop):
            if not _is_work(context, call, trains=trains) or not _is_settled(context, call, changed):
                continue
            hot = context.hot(call)
            if (
                hot is None
                or hot.guard
                or hot.kind == HeatKind.DATA
                or _is_part_of_settled(context, call, changed, loop)
            ):
                continue
            yield Hit(
                at=call,
                hot=hot,
                message=f"{context.shown(call)} is the same in every step",
                confidence=Confidence.LOW if context.call_kind(call) is CallKind.MODEL else Confidence.MEDIUM,
                gain=_GAIN,
            )


def _calls(loop: LoopNode) -> Iterator[ast.Call]:
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


def _changed(loop: LoopNode) -> set[str]:
    """Names that the loop binds, or may change: subscripts, attributes, methods called as statements."""
    names = names_bound_in(loop)
    for node in ast.walk(loop):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            names.add(root_name(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            names.add(root_name(node.value.func))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            names.add(root_name(node.func))
    return names


def _is_work(context: RuleContext, call: ast.Call, *, trains: bool) -> bool:
    """Whether a call is worth doing once: a tokenizer, an encoder, a tensor operation; not what is trained."""
    name = last_name(call.func)
    if isinstance(call.func, ast.Name | ast.Attribute) and context.kind(call.func) is Kind.TOKENIZER:
        return True
    if name in _WORK and not (trains and name.startswith(("encode_", "get_"))):
        return context.is_tensor(call) or name.startswith(("encode_", "get_"))
    if (
        trains
        or context.call_kind(call) is not CallKind.MODEL
        or name.startswith(("unwrap", "get_", "prepare", "load"))
    ):
        return False
    dotted = context.value(call.func).dotted or ""
    return dotted == "torch.nn.Module" or not dotted.startswith("torch.nn.")


def _is_settled(context: RuleContext, call: ast.Call, changed: set[str]) -> bool:
    """Whether all it reads is bound before the loop, and nothing in it is random."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    read = set().union(*(names_in(argument) for argument in arguments)) if arguments else set()
    owner = root_name(call.func)
    if not read or (read | {owner}) & changed or "self" in read:
        return False
    called = {last_name(n.func) for n in ast.walk(call) if isinstance(n, ast.Call)}
    return not called & _RANDOM and not any(name.endswith("_") for name in called)


def _is_part_of_settled(context: RuleContext, call: ast.Call, changed: set[str], loop: LoopNode) -> bool:
    """Whether a call around it is reported already."""
    for up in context.ancestors(call):
        if up is loop:
            return False
        if isinstance(up, ast.Call) and _is_settled(context, up, changed) and _is_work(context, up, trains=False):
            return True
    return False
