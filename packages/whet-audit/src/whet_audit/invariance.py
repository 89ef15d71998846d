"""What stays the same from one round of a loop to the next, and what comes from the loop's own variable."""

from __future__ import annotations

import ast

from whet_audit.gradients import names_in
from whet_audit.rule_context import RuleContext
from whet_audit.source import LoopNode

_RANDOM = ("rand", "randn", "randint", "randperm", "multinomial", "normal", "choice", "sample", "shuffle", "uniform")
_CHANGES = frozenset(
    "append extend add_ mul_ copy_ sub_ div_ fill_ zero_ scatter_ masked_fill_ pop insert update step clear".split()
)


def changed_in(loop: LoopNode) -> set[str]:
    """Names, and attributes such as `self.x`, that a loop binds or changes in place."""
    found: set[str] = names_in([loop.target]) if not isinstance(loop, ast.While) else set()
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                owner: ast.expr = node
                while isinstance(owner, ast.Subscript):
                    owner = owner.value
                found.add(ast.unparse(owner))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
                found.add(ast.unparse(node.func.value))
    return found


def is_invariant(context: RuleContext, expression: ast.AST, loop: LoopNode, changed: set[str] | None = None) -> bool:
    """Whether an expression has the same value in every round: nothing it reads changes, nothing in it is random."""
    changed = changed_in(loop) if changed is None else changed
    for node in ast.walk(expression):
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in changed:
            return False
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name.startswith(_RANDOM) or name in ("next", "input", "time", "pop"):
                return False
    return True


def sources_in(context: RuleContext, expression: ast.AST, loop: LoopNode) -> set[str]:
    """All names an expression depends on, through what the loop's body binds them to."""
    function = context.function_of(expression)
    inside = set(ast.walk(loop))
    known = names_in([expression])
    waiting = set(known)
    while waiting:
        name = waiting.pop()
        for binding in function.bindings.get(name, ()):
            if binding.node in inside and binding.node is not loop and binding.value is not None:
                new = names_in([binding.value]) - known
                known |= new
                waiting |= new
    return known
