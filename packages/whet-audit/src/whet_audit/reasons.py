"""Why a statement may have to stay as it is: what people write beside it."""

from __future__ import annotations

import ast

from whet_audit.source import Module


def has_comment(module: Module, node: ast.AST) -> bool:
    """Whether a comment speaks of a node's statement, or of the block that it begins: its author had a reason.

    It may stand on the lines of the statement, above it, or below it where nothing else of the block follows.
    """
    statement: ast.AST = module.statement_of(node)
    lines = module.python_lines
    first, last = _lines_of(statement)
    if any("#" in line for line in lines[first - 1 : last]) or _is_comment(_above(lines, first)):
        return True
    below = lines[last] if last < len(lines) and _ends(module.parents.get(statement), statement) else ""
    if _is_comment(below) and _indent(below) >= _indent(lines[first - 1]):
        return True
    while (header := module.parents.get(statement)) is not None and _begins(header, statement):
        first, last = _lines_of(header)[0], _lines_of(statement)[0] - 1
        if any("#" in line for line in lines[first - 1 : last]) or _is_comment(_above(lines, first)):
            return True
        statement = header
    return False


def _ends(block: ast.AST | None, statement: ast.AST) -> bool:
    """Whether no statement follows in the same block, of which a comment below it would speak."""
    lists = (getattr(block, name, ()) for name in ("body", "orelse", "finalbody"))
    return any(statements and statements[-1] is statement for statements in lists if isinstance(statements, list))


def _begins(header: ast.AST, statement: ast.AST) -> bool:
    """Whether a condition or a context has the statement first in its block, so that a comment above is of both."""
    return isinstance(header, ast.If | ast.With | ast.AsyncWith | ast.Try) and header.body[0] is statement


def _lines_of(node: ast.AST) -> tuple[int, int]:
    first: int = getattr(node, "lineno", 1)
    last: int | None = getattr(node, "end_lineno", None)
    return first, last or first


def _above(lines: list[str], first: int) -> str:
    """The nearest line above that is not empty."""
    return next((line for line in reversed(lines[: first - 1]) if line.strip()), "")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
