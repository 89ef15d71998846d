"""Which expressions are numpy arrays, or lists of them, beyond what kinds tell: scipy's indices, lists appended to."""

from __future__ import annotations

import ast

from whet_audit.abstract_types import Kind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

_OF_SPARSE = frozenset(("row", "col", "data", "indices", "indptr"))
_MAKES_ARRAYS = ("numpy.", "scipy.optimize.linear_sum_assignment", "cv2.")


def is_array(context: RuleContext, e: ast.expr, _depth: int = 0) -> bool:
    """Whether an expression is a numpy array, as far as the code says."""
    value = context.value(e)
    if value.kind is Kind.ARRAY:
        return value.is_sure
    if value.kind not in (Kind.UNKNOWN, Kind.OTHER) or _depth > 3:
        return False
    if isinstance(e, ast.Attribute):
        return e.attr in _OF_SPARSE and any(full.startswith("scipy") for full in context.module.imports.values())
    if isinstance(e, ast.Subscript) and isinstance(e.value, ast.Call):
        return context.dotted(e.value.func) in _MAKES_ARRAYS
    if isinstance(e, ast.Name):
        bindings = [b for b in context.function_of(e).bindings.get(e.id, []) if b.line <= e.lineno]
        made = [b.value for b in bindings if b.how == "value" and not b.path and b.value is not None]
        return len(made) == len(bindings) == 1 and made[0] is not e and is_array(context, made[0], _depth + 1)
    return False


def is_list_of_arrays(context: RuleContext, e: ast.expr) -> bool:
    """Whether an expression is a list whose elements are numpy arrays."""
    if isinstance(e, ast.ListComp):
        return is_array(context, e.elt) and not _is_item(e.elt)
    if isinstance(e, ast.List):
        return bool(e.elts) and all(is_array(context, element) and not _is_item(element) for element in e.elts)
    if isinstance(e, ast.Name):
        return _is_filled_with_arrays(context, e) or _is_tested_for_arrays(context, e)
    return False


def _is_item(e: ast.expr) -> bool:
    """Whether it may be one number of an array: `a[i]`, `a.max()`, `np.mean(a)`."""
    numbers = frozenset("mean sum max min std var argmax argmin median prod norm dot percentile any all".split())
    if isinstance(e, ast.Call):
        has_axis = any(keyword.arg in ("axis", "keepdims") for keyword in e.keywords)
        return name_of(e) in numbers and not has_axis and len(e.args) <= 1
    return isinstance(e, ast.Subscript) and not isinstance(e.value, ast.Call) and not isinstance(e.slice, ast.Slice)


def _is_filled_with_arrays(context: RuleContext, e: ast.Name) -> bool:
    """Whether the list is bound to such a list, or starts empty and is appended arrays only."""
    function = context.function_of(e)
    bindings = [b for b in function.bindings.get(e.id, []) if b.line < e.lineno]
    if not bindings or bindings[-1].value is None or bindings[-1].how != "value":
        return False
    value = bindings[-1].value
    for index in bindings[-1].path:
        if not isinstance(value, ast.Tuple | ast.List) or index >= len(value.elts):
            return False
        value = value.elts[index]
    if isinstance(value, ast.ListComp):
        return is_list_of_arrays(context, value)
    if not isinstance(value, ast.List) or value.elts:
        return False
    added = _appended(function, e.id)
    return bool(added) and all(is_array(context, one) and not _is_item(one) for one in added)


def _appended(function: Function, name: str) -> list[ast.expr]:
    return [
        call.args[0]
        for call in function.calls
        if name_of(call) == "append"
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == name
        and call.args
    ]


def _is_tested_for_arrays(context: RuleContext, e: ast.Name) -> bool:
    """Whether the code itself asks, in an `if` around: `isinstance(e[0], np.ndarray)`."""
    child: ast.AST = e
    for up in context.ancestors(e):
        if up in context.module.function_of_node:
            return False
        if isinstance(up, ast.If) and child in up.body:
            test = up.test
            if isinstance(test, ast.Call) and name_of(test) == "isinstance" and len(test.args) == 2:
                asked = test.args[0]
                is_first = isinstance(asked, ast.Subscript) and getattr(asked.value, "id", None) == e.id
                return is_first and ast.unparse(test.args[1]).endswith("ndarray")
        child = up
    return False
