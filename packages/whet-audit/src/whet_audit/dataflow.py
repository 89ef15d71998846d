"""Where a local value comes from and where it goes, within one function and by the order of its lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from whet_audit.rule_context import RuleContext
from whet_audit.source import Function


def latest(context: RuleContext, name: ast.Name) -> ast.expr | None:
    """What a name was last bound to above where it is read; None for parameters, loop targets and parts of tuples.

    Updates in place (`x += y`) are passed over, to what they update.
    """
    here = context.statement(name)
    for binding in sorted(context.function_of(name).bindings.get(name.id, ()), key=lambda b: b.line, reverse=True):
        if binding.line > name.lineno or binding.how == "update" or binding.node is here:
            continue
        return binding.value if binding.how == "value" and not binding.path else None
    return None


def origins(context: RuleContext, expression: ast.expr, deepest: int = 6) -> Iterator[ast.expr]:
    """The expression, and what its names were last bound to, and the names in those: nearest first."""
    seen: set[int] = set()
    waiting: list[tuple[ast.expr, int]] = [(expression, 0)]
    while waiting:
        one, depth = waiting.pop(0)
        yield one
        if depth >= deepest:
            continue
        for name in (n for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)):
            bound = latest(context, name)
            if bound is not None and id(bound) not in seen:
                seen.add(id(bound))
                waiting.append((bound, depth + 1))


def reads(function: Function, name: str, after: int) -> list[ast.Name]:
    """Where a name is read below a line, up to where it is bound anew."""
    ends = [b.line for b in function.bindings.get(name, ()) if b.line > after and b.how != "update"]
    last = min(ends, default=10**9)
    found = [
        n
        for n in ast.walk(function.node)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and after < n.lineno <= last
    ]
    return sorted(found, key=lambda n: n.lineno)


def names_in(node: ast.AST) -> set[str]:
    """All plain names in a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def names_bound_in(node: ast.AST) -> set[str]:
    """The plain names that a node binds: by assignment, loops, with, walrus."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def last_name(expression: ast.expr) -> str:
    """`y` of `x.y`, `x` of `x`; "" of anything else."""
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
