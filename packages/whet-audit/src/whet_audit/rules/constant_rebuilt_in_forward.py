"""MOV105 constant-rebuilt-in-forward: every call makes a tensor again that is always the same.

Finds       arange, linspace, eye, tril, triu, windows and torch.tensor([...]) in a forward pass or a step loop, of
            nothing but literals, module constants and attributes that are set once; and position ids.
Why slow    A few kernels, or a fill on the CPU and a copy that blocks, in every call, for what a buffer would hold.
Example     def forward(self, x): mean = torch.tensor([0.485, 0.456, 0.406]).to(x.device)
Instead     in __init__: self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]), persistent=False)
Gain        some microseconds per kernel, and the wait for the copy where it is made on the CPU.
Fix         none: the buffer belongs in __init__, and what is written to the tensor has to be looked at.
Source      PyTorch documentation of torch.nn.Module.register_buffer.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "MOV105"
NAME = "constant-rebuilt-in-forward"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.05, "a few kernels or one blocking copy in every call, against a short step")
_MAKERS = tuple(
    f"torch.{name}"
    for name in "arange linspace logspace eye tensor as_tensor FloatTensor LongTensor hann_window hamming_window "
    "tril_indices triu_indices".split()
)
_SHAPES = ("torch.ones", "torch.full")  # only as masks: what is filled with numbers otherwise is often written to
_KINDS = (*TRAINS, HeatKind.FORWARD, *(INFERS - {HeatKind.INFERENCE_CALL}))
_PASSED_BY = frozenset(("device", "dtype", "requires_grad", "pin_memory", "layout"))


def check(context: RuleContext) -> Iterator[Hit]:
    """Factories whose arguments are all constant."""
    for call in context.calls_to(*_MAKERS, *_SHAPES):
        values = [*call.args, *(k.value for k in call.keywords if k.arg not in _PASSED_BY)]
        is_constant = bool(values) and all(_is_constant(context, value) for value in values)
        if not is_constant and not _is_positions(context, call):
            continue
        if context.dotted(call.func) in _SHAPES and not _is_triangle(context, call):
            continue
        if name_of(call).lower().endswith("tensor") and not _holds_several(call):
            continue
        hot = context.hot(call)
        if hot is None or hot.guard or hot.kind not in _KINDS or _is_kept(context, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} is made again in every call and is always the same"
            + ("" if is_constant else ", but for its length"),
            confidence=Confidence.MEDIUM if is_constant else Confidence.LOW,
            gain=_GAIN,
        )


def _is_positions(context: RuleContext, call: ast.Call) -> bool:
    """Whether it makes position ids, of which a buffer could hold the most that are ever needed."""
    statement = context.statement(call)
    is_counted = name_of(call) == "arange" and len(call.args) == 1 and isinstance(statement, ast.Assign)
    return is_counted and any(getattr(target, "id", "") == "position_ids" for target in statement.targets)  # type: ignore[attr-defined]


def _is_constant(context: RuleContext, value: ast.expr) -> bool:
    """Whether an expression can have one value only: literals, module constants, attributes set in __init__ alone."""
    match value:
        case ast.Constant():
            return True
        case ast.List() | ast.Tuple():
            return all(_is_constant(context, element) for element in value.elts)
        case ast.UnaryOp():
            return _is_constant(context, value.operand)
        case ast.BinOp():
            return _is_constant(context, value.left) and _is_constant(context, value.right)
        case ast.Call(func=ast.Name(id="int" | "float" | "len" | "min" | "max")):
            return all(_is_constant(context, argument) for argument in value.args)
        case ast.Name():
            return _is_module_constant(context, value)
        case ast.Attribute():
            return _is_fixed(context, value)
    return False


def _is_module_constant(context: RuleContext, name: ast.Name) -> bool:
    function = context.function_of(name)
    if name.id in function.bindings or any(argument.arg == name.id for argument in function.arguments):
        return False
    bindings = context.module.top.bindings.get(name.id, [])
    return name.id.isupper() and (len(bindings) == 1 or name.id in context.module.imports)


def _is_fixed(context: RuleContext, attribute: ast.Attribute) -> bool:
    """Whether an attribute of self is set in __init__ alone, or is read from the configuration."""
    if isinstance(attribute.value, ast.Attribute):
        return attribute.value.attr in ("config", "cfg", "args") and getattr(attribute.value.value, "id", "") == "self"
    if getattr(attribute.value, "id", "") == "math":
        return True
    cls = context.class_of(attribute)
    if getattr(attribute.value, "id", "") != "self" or cls is None:
        return False
    bindings = context.project.attribute(cls, attribute.attr)
    homes = {context.module.function_of(b.node).name for b in bindings if b.node in context.module.parents}
    return bool(bindings) and homes == {"__init__"} and not context.is_tensor(attribute)


def _is_triangle(context: RuleContext, call: ast.Call) -> bool:
    parent = context.parent(call)
    return (isinstance(parent, ast.Call) and name_of(parent) in ("tril", "triu")) or (
        isinstance(parent, ast.Attribute) and parent.attr in ("tril", "triu")
    )


def _holds_several(call: ast.Call) -> bool:
    """Whether the data is a list that is not empty: single numbers are often running sums."""
    lists = (node for node in ast.walk(call.args[0]) if isinstance(node, ast.List | ast.Tuple)) if call.args else ()
    return any(one.elts for one in lists)


def _is_kept(context: RuleContext, call: ast.Call) -> bool:
    """Whether the result goes to an attribute, as a cache does, or is only looped over."""
    statement = context.statement(call)
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.Raise)
