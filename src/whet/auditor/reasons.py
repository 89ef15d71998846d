"""Why a statement may have to stay as it is: what people write beside it."""

from __future__ import annotations

import ast

from whet.auditor.rule_context import RuleContext


def has_comment(context: RuleContext, node: ast.AST) -> bool:
    """Whether a comment stands on the lines of a node's statement, or right above it: its author had a reason."""
    statement = context.statement(node)
    lines = context.module.python_lines
    own = lines[statement.lineno - 1 : statement.end_lineno or statement.lineno]
    if any("#" in line for line in own):
        return True
    above = lines[statement.lineno - 2].strip() if statement.lineno > 1 else ""
    return above.startswith("#")
