"""Where gradients are off, and which expressions carry the graph of a forward pass with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from whet_audit.calls import CallKind
from whet_audit.inference import runs_forward
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Binding, Function, Module

SWITCHES = ("torch.no_grad", "torch.autograd.no_grad", "torch.autograd.grad_mode.no_grad")
_OFF = re.compile(
    r"no_?grad|inference_?mode|without_?grad|disable_?grad|grad_?enabled|torch_inference|eval_?mode|grad_?state|freez",
    re.I,
)
_CUTS = frozenset(
    "item detach detach_ tolist numpy argmax argmin argsort size dim numel long int bool eq ne gt ge lt le any all "
    "isnan isfinite sign floor ceil round nonzero unique bincount one_hot data_ptr stop_gradient".split()
)
_FACTORIES = frozenset(
    "tensor as_tensor zeros ones full empty rand randn randint arange linspace eye from_numpy zeros_like ones_like "
    "rand_like randn_like full_like empty_like multinomial randperm argmax argmin argsort".split()
)
_NUMBERS = frozenset("float int len str round bool repr isinstance id type".split())
_KEPT = frozenset(
    "loss logits losses last_hidden_state pooler_output hidden_states prediction_logits sample T mT values".split()
)
_DEEPEST = 7


def switch_above(module: Module, node: ast.AST) -> ast.expr | None:
    """The nearest `with` or decorator around a node that says whether gradients are taken; None without one."""
    for up in (node, *module.ancestors(node)):
        expressions: list[ast.expr] = []
        if isinstance(up, ast.With | ast.AsyncWith):
            expressions = [item.context_expr for item in up.items]
        elif isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            expressions = up.decorator_list
        for expression in expressions:
            if _OFF.search(module.source_of(expression)):
                return expression
    return None


def is_off(context: RuleContext, node: ast.AST) -> bool:
    """Whether gradients are off at a node: there, by a call before it, or in a caller that the project has."""
    return _is_off(context, context.module, node, 3)


def _is_off(context: RuleContext, module: Module, node: ast.AST, depth: int) -> bool:
    function = module.function_of(node)
    if switch_above(module, node) is not None or _is_switched(function) or _is_switched(module.top):
        return True
    callers = context.project.callers(function) if depth else []
    return any(_is_off(context, at.module, call, depth - 1) for at, call in callers[:8])


def _is_switched(function: Function) -> bool:
    """Whether a function calls `torch.set_grad_enabled(...)` as a statement, or freezes the model."""
    for call in function.calls:
        name = name_of(call)
        if name in ("set_grad_enabled", "_set_grad_enabled"):
            return True
        if name == "requires_grad_" and call.args and getattr(call.args[0], "value", None) is False:
            return True
    return False


def differentiated(context: RuleContext, function: Function) -> Iterator[ast.expr]:
    """What a function calls backward on: `loss` of `loss.backward()` and of `scaler.scale(loss).backward()`."""
    for call in function.calls:
        if context.call_kind(call) is CallKind.BACKWARD and isinstance(call.func, ast.Attribute):
            yield call.args[0] if call.args and not is_chain(call.func.value, call) else call.func.value


def is_chain(owner: ast.expr, call: ast.Call) -> bool:
    """Whether `owner.backward(x)` differentiates the owner: x is its gradient then, not the loss."""
    argument = call.args[0]
    return isinstance(argument, ast.Call) or "grad" in ast.unparse(argument) or "loss" in ast.unparse(owner).lower()


def names_in(expressions: Iterable[ast.AST | None]) -> set[str]:
    """The local names that expressions read."""
    return {node.id for e in expressions if e is not None for node in ast.walk(e) if isinstance(node, ast.Name)}


def feeds_backward(context: RuleContext, function: Function, name: str) -> bool:
    """Whether what a name holds is differentiated, through up to three assignments."""
    return goes_into(function, name, differentiated(context, function))


def goes_into(function: Function, name: str, expressions: Iterable[ast.AST | None]) -> bool:
    """Whether expressions are computed from a name, through up to three assignments."""
    known = names_in(expressions)
    for _ in range(3):
        if name in known:
            return True
        known |= names_in(b.value for one in known for b in function.bindings.get(one, ()) if b.how != "item")
    return name in known


def carries_graph(context: RuleContext, e: ast.expr, _depth: int = 0) -> bool | None:
    """Whether an expression holds on to the graph of a forward pass, where gradients are on; None if not known."""
    if _depth > _DEEPEST:
        return None
    match e:
        case ast.Name():
            return _name_carries(context, e, _depth)
        case ast.Attribute():
            if e.attr in ("data", "grad", "shape", "device", "dtype"):
                return False
            return carries_graph(context, e.value, _depth + 1) if e.attr in _KEPT else None
        case ast.Subscript() | ast.Starred() | ast.Await():
            return carries_graph(context, e.value, _depth + 1)
        case ast.BinOp():
            return _any(context, (e.left, e.right), _depth)
        case ast.UnaryOp():
            return carries_graph(context, e.operand, _depth + 1)
        case ast.Tuple() | ast.List():
            return _any(context, e.elts, _depth)
        case ast.Dict():
            return _any(context, e.values, _depth)
        case ast.IfExp():
            return _any(context, (e.body, e.orelse), _depth)
        case ast.Call():
            return _call_carries(context, e, _depth)
        case ast.Constant() | ast.Compare() | ast.JoinedStr():
            return False
    return None


def _any(context: RuleContext, expressions: Iterable[ast.expr], depth: int) -> bool | None:
    found = [carries_graph(context, e, depth + 1) for e in expressions]
    return True if True in found else None if None in found else False


def _name_carries(context: RuleContext, name: ast.Name, depth: int) -> bool | None:
    function = context.function_of(name)
    binding = latest(function, name)
    carries: bool | None = None
    if binding is not None and binding.value is not None:
        if binding.how == "item":
            return False if binding.value is not None and "loader" in context.source(binding.value).lower() else None
        if binding.how == "value":
            if switch_above(context.module, binding.node) is not None:
                return False
            carries = carries_graph(context, binding.value, depth + 1)
            if carries and binding.path and isinstance(binding.value, ast.Call) and binding.path[0] > 0:
                carries = None if _picks(binding.value) is False else carries
    if carries is None and name.id in {e.id for e in differentiated(context, function) if isinstance(e, ast.Name)}:
        return True
    return carries


def _picks(call: ast.Call) -> bool:
    """False for calls whose second result is indices: `values, indices = x.max(1)`."""
    return name_of(call) not in ("max", "min", "topk", "sort")


def latest(function: Function, name: ast.Name) -> Binding | None:
    """What a name was last bound to above its line, `+=` apart; else what a loop binds it to below."""
    bindings = [b for b in function.bindings.get(name.id, ()) if b.how != "update"]
    above = [b for b in bindings if b.line < name.lineno]
    return above[-1] if above else bindings[-1] if bindings else None


def _call_carries(context: RuleContext, call: ast.Call, depth: int) -> bool | None:
    function = call.func
    name = name_of(call)
    if name in _CUTS or name in _NUMBERS:
        return False
    dotted = context.dotted(function) or ""
    if dotted.startswith(("torch.", "einops.")):
        return False if name in _FACTORIES else _any(context, call.args, depth)
    if runs_forward(context, call):
        return switch_above(context.module, call) is None
    if name in ("sum", "list", "tuple", "dict") and isinstance(function, ast.Name):
        return _any(context, call.args, depth)
    if re.fullmatch(r"(\w*_)?(criterion|loss\w*|crit)|\w*Loss", name):
        return _any(context, [*call.args, *(k.value for k in call.keywords)], depth)
    if isinstance(function, ast.Attribute) and context.is_tensor(function.value):
        return carries_graph(context, function.value, depth + 1)
    return None
