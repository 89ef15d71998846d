"""SYN109 boolean-mask-indexing: `x[mask]` in every step, for whose size the CPU waits.

Finds       reading `x[mask]`, and writing tensors to `x[mask]`, where mask is a comparison or another boolean tensor.
            `x[mask] = 0` with a number is no finding: PyTorch runs it as masked_fill.
Why slow    A mask is turned into indices by nonzero, whose result has no size before all kernels queued so far ran.
Example     loss = losses[labels != -100].mean()
Instead     mask = labels != -100; loss = (losses * mask).sum() / mask.sum(), or torch.where(mask, x, y)
Gain        up to the share of the step that the CPU needs to queue its kernels; on a CPU it may even be quicker.
Fix         none: sums over fixed shapes add up in another order, and most code after it needs the shorter shape.
Source      PyTorch documentation of torch.nonzero and torch.Tensor.index_put_; ATen, canDispatchToMaskedFill.
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.waits import is_library, is_tensor_value, wait_at

CODE = "SYN109"
NAME = "boolean-mask-indexing"
PRIORITY = Priority.LOW
PREVIEW = True
_GAIN = Gain(0.0, 0.1, "a GPU that waits for its kernels to be queued; nothing on a CPU")
_MASK_NAME = re.compile(r"(\w+_)?masks?|is_\w+|\w+_mask_\w{1,5}")
_MAKES_BOOLEANS = frozenset(
    "isnan isinf isfinite logical_and logical_or logical_not logical_xor eq ne gt ge lt le bool isin isclose "
    "greater greater_equal less less_equal not_equal signbit".split()
)
_DEEPEST = 4


def check(context: RuleContext) -> Iterator[Hit]:
    """Subscripts whose index is a boolean tensor, alone or among others; of each mask in a block the first."""
    seen: set[tuple[ast.AST | None, str]] = set()
    for subscript in sorted(context.nodes(ast.Subscript), key=lambda one: (one.lineno, one.col_offset)):
        owner = context.value(subscript.value)
        if owner.kind not in (Kind.TENSOR, Kind.OUTPUT, Kind.UNKNOWN) or owner.device == "cpu":
            continue
        indices = subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else [subscript.slice]
        mask = next((index for index in indices if _is_mask(context, index)), None)
        if mask is None or _fills(context, subscript):
            continue
        mask_value = context.value(mask)
        is_known = mask_value.kind is Kind.TENSOR and mask_value.is_sure
        if not is_known and owner.kind is Kind.UNKNOWN and not is_library(context, subscript):
            continue
        if mask_value.kind is Kind.UNKNOWN and owner.kind is Kind.UNKNOWN and _is_of_numpy(context):
            continue
        if mask_value.device == "cpu":
            continue
        is_sure = is_known or (owner.kind is Kind.TENSOR and owner.is_sure) or not _is_of_numpy(context)
        wait = wait_at(context, subscript, is_sure=is_sure)
        place = (context.parent(context.statement(subscript)), ast.unparse(mask))
        if wait is not None and place not in seen:
            seen.add(place)
            yield Hit(
                at=subscript,
                hot=wait.hot,
                message=f"{context.shown(subscript)} selects by a mask: the CPU waits for the GPU to count it",
                confidence=wait.confidence if is_known else Confidence.LOW,
                priority=wait.priority,
                gain=_GAIN,
            )


def _is_mask(context: RuleContext, index: ast.expr, depth: int = 0) -> bool:
    """Whether an index is a boolean tensor: made by a comparison, or a tensor that is called a mask."""
    if depth > _DEEPEST:
        return False
    match index:
        case ast.Compare():
            return is_tensor_value(context, index)
        case ast.UnaryOp(op=ast.Invert()):
            return _is_mask(context, index.operand, depth + 1)
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.BitXor()):
            return _is_mask(context, index.left, depth + 1) or _is_mask(context, index.right, depth + 1)
        case ast.Call():
            return is_tensor_value(context, index) and (
                name_of(index) in _MAKES_BOOLEANS or _is_to_bool(context, index)
            )
        case ast.Subscript():
            return _is_mask(context, index.value, depth + 1)
        case ast.Name():
            is_unknown = context.kind(index) is Kind.UNKNOWN and _MASK_NAME.fullmatch(index.id) is not None
            return (is_unknown or is_tensor_value(context, index)) and _is_bound_to_mask(context, index, depth)
    return False


def _is_bound_to_mask(context: RuleContext, name: ast.Name, depth: int) -> bool:
    bindings = [b for b in context.function_of(name).bindings.get(name.id, ()) if b.line <= name.lineno]
    values = [binding.value for binding in bindings if binding.value is not None and not binding.path]
    if not values:
        return _MASK_NAME.fullmatch(name.id) is not None
    last = values[-1]
    if last is None or name in ast.walk(last):
        return False
    return _is_mask(context, last, depth + 1) or (
        _MASK_NAME.fullmatch(name.id) is not None and not any(_makes_numbers(one) for one in values)
    )


def _makes_numbers(made: ast.expr | None) -> bool:
    """Whether a value that is called a mask holds indices or weights after all."""
    if not isinstance(made, ast.Call):
        return isinstance(made, ast.BinOp)
    return name_of(made) in ("long", "int", "nonzero", "float", "argsort", "topk", "where", "arange", "masked_fill")


def _is_to_bool(context: RuleContext, call: ast.Call) -> bool:
    return any(
        (context.dotted(argument) if isinstance(argument, ast.Attribute) else None) == "torch.bool"
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
    )


def _is_of_numpy(context: RuleContext) -> bool:
    """Whether what is not known may be an array."""
    return "numpy" in context.module.imports.values() or "pandas" in context.module.imports.values()


def _fills(context: RuleContext, subscript: ast.Subscript) -> bool:
    """Whether the place is filled with a number, or is deleted: no indices are made then."""
    if isinstance(subscript.ctx, ast.Load):
        return False
    parent = context.parent(subscript)
    if not isinstance(parent, ast.Assign):
        return not isinstance(parent, ast.AugAssign)
    return not is_tensor_value(context, parent.value)
