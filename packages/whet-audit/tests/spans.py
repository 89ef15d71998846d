"""Where things stand in a source, for edits that tests put together."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter

from whet_audit.finding import (
    Edit,
    Fix,
    Span,
)
from whet_audit.fixing import apply_fixes


def span(source: str, node: ast.AST) -> Span:
    """The span of a node, its columns counted in characters."""
    lines = source.encode().splitlines()
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Span(
        node.lineno,
        len(lines[node.lineno - 1][: node.col_offset].decode()),
        node.end_lineno,
        len(lines[node.end_lineno - 1][: node.end_col_offset].decode()),
    )


def at(source: str, text: str, kind: type[ast.AST] = ast.AST) -> Span:
    """The span of the first node of `kind` whose source is or, for statements, starts with `text`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kind) and isinstance(node, ast.expr | ast.stmt):
            segment = ast.get_source_segment(source, node) or ""
            if segment == text or (isinstance(node, ast.stmt) and segment.startswith(text)):
                return span(source, node)
    raise AssertionError(f"no {text!r} in the source")


def call(source: str, text: str) -> Span:
    return at(source, text, ast.Call)


def stmt(source: str, text: str) -> Span:
    return at(source, text, ast.stmt)


def fix(*edits: Edit) -> Fix:
    return Fix("do it", True, edits)


def applied(source: str, *edits: Edit) -> str:
    result = apply_fixes(source, [fix(*edits)])
    assert not result.skipped, result.skipped
    return result.source


def comments(source: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)
