"""Where the result of a call goes: into which names of the function that makes it, and out of it."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import NamedTuple

from whet_audit.source import Function

_STORES = frozenset("append add extend insert update setdefault".split())


class ResultFlow(NamedTuple):
    """names: what holds something that is made of the result. is_kept: an attribute does, which others may read."""

    call: ast.Call
    names: frozenset[str]
    is_kept: bool

    def reaches(self, node: ast.AST | None) -> bool:
        return node is not None and _reads(node, self.call, self.names)

    def is_yielded(self, function: Function) -> bool:
        """Whether the function hands it out as a generator."""
        yields = (node for node in ast.walk(function.node) if isinstance(node, ast.Yield | ast.YieldFrom))
        return any(self.reaches(node.value) for node in yields)


def flow_of(function: Function, call: ast.Call) -> ResultFlow:
    """Follow the result of one of the function's own calls."""
    names: set[str] = set()
    while more := _holding(function, call, names) - names:
        names |= more
    return ResultFlow(call, frozenset(names), "self" in names or _keeps(function, call, names))


@lru_cache(maxsize=4096)
def leaves_something(function: Function) -> bool:
    """Whether a function changes what others see beside its result: attributes, items, its arguments."""
    given = {argument.arg for argument in function.arguments}
    for node in ast.walk(function.node):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Global | ast.Nonlocal):
            return True
        changed = _stored_into(node)
        if changed is not None and (_root(changed) in given or isinstance(changed, ast.Attribute)):
            return True
    return False


def _stored_into(node: ast.AST) -> ast.expr | None:
    """What a call such as `losses.append(x)` changes."""
    is_store = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STORES
    return node.func.value if is_store else None  # type: ignore[attr-defined]


def _holding(function: Function, call: ast.Call, names: set[str]) -> set[str]:
    """The names that hold something of the result, where those of `names` do."""
    found = {
        name
        for name, bindings in function.bindings.items()
        if any(binding.value is not None and _reads(binding.value, call, names) for binding in bindings)
    }
    for stored in function.calls:
        changed = _stored_into(stored)
        if changed is not None and any(_reads(argument, call, names) for argument in stored.args):
            found.add(_root(changed))
    for target, value in _stores(function):
        if isinstance(target, ast.Subscript) and _reads(value, call, names):
            found.add(_root(target))
    return found


def _keeps(function: Function, call: ast.Call, names: set[str]) -> bool:
    return any(isinstance(target, ast.Attribute) and _reads(value, call, names) for target, value in _stores(function))


@lru_cache(maxsize=1024)
def _stores(function: Function) -> list[tuple[ast.expr, ast.expr]]:
    """What a function assigns to attributes and items, by their parts."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
            found += [(part, node.value) for part in parts if isinstance(part, ast.Attribute | ast.Subscript)]
    return found


def _reads(node: ast.AST, call: ast.Call, names: frozenset[str] | set[str]) -> bool:
    return any(one is call or (isinstance(one, ast.Name) and one.id in names) for one in ast.walk(node))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
