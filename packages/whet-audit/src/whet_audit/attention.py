"""Attention written out: a product of queries and keys, a softmax, a product with values; over several statements."""

from __future__ import annotations

import ast

from whet_audit.dataflow import last_name, latest, reads
from whet_audit.project import root_name
from whet_audit.rule_context import RuleContext

_PRODUCTS = frozenset("matmul bmm einsum baddbmm contract".split())
_KEPT = frozenset(  # methods and functions between the product and the softmax, and between it and the values
    (
        "float half bfloat16 to type type_as masked_fill masked_fill_ clamp clip view reshape contiguous squeeze "
        "unsqueeze flatten add add_ mul mul_ div div_ sub sub_ where dropout nan_to_num transpose permute expand "
        "masked_fill_where rearrange detach clone"
    ).split()
)
_DEEPEST = 12


def scores_of(context: RuleContext, call: ast.Call) -> ast.expr | None:
    """What the softmax is of; None for other functions of that name."""
    if isinstance(call.func, ast.Attribute):
        dotted = context.dotted(call.func) or ""
        if dotted.startswith(("numpy", "scipy", "jax", "tensorflow")):
            return None
        if call.args and (dotted.startswith(("torch", "self.")) or last_name(call.func.value) in ("F", "functional")):
            return call.args[0]
        return call.func.value if not dotted.startswith(("torch", "self.")) else None
    return call.args[0] if call.args else None


def product_in(context: RuleContext, e: ast.expr, depth: int) -> ast.expr | None:
    """The product of two activations that an expression is made of, through scales, masks and casts."""
    if depth > _DEEPEST:
        return None
    if operands(context, e):
        return e
    inner: list[ast.expr] = []
    match e:
        case ast.Name():
            bound = latest(context, e)
            inner = [bound] if bound is not None else []
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
            inner = [e.left, e.right]
        case ast.IfExp():
            inner = [e.body, e.orelse]
        case ast.Subscript():
            inner = [e.value]
        case ast.Call() if isinstance(e.func, ast.Attribute | ast.Name):
            name = last_name(e.func).lower()
            if name in _KEPT or "drop" in name or "mask" in name:
                inner = [*([e.func.value] if isinstance(e.func, ast.Attribute) else []), *e.args[:3]]
    for one in inner:
        found = product_in(context, one, depth + 1)
        if found is not None:
            return found
    return None


def weighted_by(context: RuleContext, e: ast.expr, depth: int) -> ast.expr | None:
    """The product with the values that an expression goes into."""
    if depth > _DEEPEST:
        return None
    child, up = e, context.parent(e)
    while up is not None and not isinstance(up, ast.stmt):
        if isinstance(up, ast.expr) and any(child is factor for factor in operands(context, up)):
            return up
        if isinstance(up, ast.Call) and child is not up.func:
            name = last_name(up.func).lower()
            if name not in _KEPT and "drop" not in name and "mask" not in name:
                return None
        elif not isinstance(up, ast.Attribute | ast.BinOp | ast.IfExp | ast.Call) or (
            isinstance(up, ast.Attribute) and up.attr not in _KEPT and up.attr not in _PRODUCTS
        ):
            return None
        assert isinstance(up, ast.expr)
        child, up = up, context.parent(up)
    if not isinstance(up, ast.Assign) or len(up.targets) != 1 or not isinstance(up.targets[0], ast.Name):
        return None
    for read in reads(context.function_of(e), up.targets[0].id, up.end_lineno or up.lineno):
        found = weighted_by(context, read, depth + 1)
        if found is not None:
            return found
    return None


def operands(context: RuleContext, e: ast.expr) -> tuple[ast.expr, ...]:
    """The two factors of a product of activations; () for anything else, products with parameters too."""
    factors: list[ast.expr] = []
    if isinstance(e, ast.BinOp) and isinstance(e.op, ast.MatMult):
        factors = [e.left, e.right]
    elif isinstance(e, ast.Call) and last_name(e.func) in _PRODUCTS:
        dotted = context.dotted(e.func) or ""
        if dotted.startswith(("numpy", "jax", "scipy")):
            return ()
        is_method = isinstance(e.func, ast.Attribute) and not dotted.startswith("torch")
        given = [a for a in e.args if not (isinstance(a, ast.Constant) and isinstance(a.value, str))]
        if is_method and isinstance(e.func, ast.Attribute) and last_name(e.func) != "einsum":
            given.insert(0, e.func.value)
        factors = given[-2:] if last_name(e.func) == "baddbmm" else given
    if len(factors) != 2 or any(_is_parameter(factor) for factor in factors):
        return ()
    return tuple(factors)


def _is_parameter(e: ast.expr) -> bool:
    """Whether a factor is an attribute of self, transposed or not: a weight."""
    while isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute):
        e = e.func.value
    return isinstance(e, ast.Attribute) and root_name(e) == "self"
