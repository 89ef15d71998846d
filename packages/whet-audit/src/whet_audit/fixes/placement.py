"""Where an edit applies in the tree, what it claims there, and which claims exclude each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from whet_audit.finding import (
    AddDecorator,
    AddImport,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveKeyword,
    ReplaceExpression,
    ReplaceStatement,
    SetKeyword,
    Span,
    WrapStatements,
)
from whet_audit.fixes.blocks import Changes, parse_header, parse_statements
from whet_audit.fixes.calls import keyword_argument
from whet_audit.fixes.expressions import parse_expression
from whet_audit.fixes.location import Tree, Unfit

_ON_STATEMENTS = InsertBefore | InsertAfter | ReplaceStatement | WrapStatements


@dataclass(frozen=True, eq=False)
class Placed:
    """An edit and the node it applies to.

    region: what it reads or changes. replaced: what it takes away, where it does. block: of the wrapped statements.
    """

    edit: Edit
    node: cst.CSTNode
    last: cst.CSTNode | None = None
    region: Span | None = None
    replaced: Span | None = None
    block: cst.CSTNode | None = None
    source: str = ""
    touches_word: bool = False


def place(tree: Tree, edit: Edit) -> Placed:
    """Find what `edit` applies to. Raises Unfit where it is not there, or what would be put in does not parse."""
    if isinstance(edit, AddImport):
        parse_statements(f"from {edit.module} import {edit.name or 'name'}")
        return Placed(edit, tree.module)
    if isinstance(edit, SetKeyword | RemoveKeyword):
        return _place_keyword(tree, edit)
    if isinstance(edit, ReplaceExpression):
        expression = tree.expression(edit.expression)
        parse_expression(edit.source)
        _check_string(tree, expression, edit.source)
        return Placed(
            edit,
            expression,
            region=edit.expression,
            replaced=edit.expression,
            source=edit.source,
            touches_word=_touches_word(tree, expression, edit.expression),
        )
    if isinstance(edit, AddDecorator):
        function = tree.statement(edit.function)
        if not isinstance(function, cst.FunctionDef | cst.ClassDef):
            raise Unfit(f"what it edits is not there: no function at line {edit.function.line}")
        parse_expression(edit.source.strip().removeprefix("@"))
        return Placed(edit, function, region=edit.function)
    if isinstance(edit, WrapStatements):
        return _place_wrapper(tree, edit)
    statement = tree.statement(edit.statement)
    parse_statements(edit.source)
    replaced = edit.statement if isinstance(edit, ReplaceStatement) else None
    return Placed(edit, statement, region=edit.statement, replaced=replaced)


def fill(changes: Changes, placed: Placed) -> None:
    """Note an edit of statements among the changes."""
    edit, node = placed.edit, placed.node
    if isinstance(edit, InsertBefore):
        changes.before.setdefault(node, []).append(edit.source)
    elif isinstance(edit, InsertAfter):
        changes.after.setdefault(node, []).append(edit.source)
    elif isinstance(edit, ReplaceStatement):
        changes.replaced[node] = edit.source
    elif isinstance(edit, WrapStatements):
        assert placed.last is not None
        changes.headers[node] = edit.header
        changes.closed.add(placed.last)


def overlap(one: Placed, other: Placed, *, of_one_fix: bool) -> bool:
    """Whether the two cannot both be applied. The same edit twice is no overlap: it is applied once.

    of_one_fix: both belong to one fix, which may insert beside a statement that it replaces or wraps.
    """
    if one.edit == other.edit or one.region is None or other.region is None:
        return False
    if isinstance(one.edit, SetKeyword | RemoveKeyword) and isinstance(other.edit, SetKeyword | RemoveKeyword):
        if one.node is other.node:
            return one.edit.name == other.edit.name
    elif isinstance(one.edit, WrapStatements) and isinstance(other.edit, WrapStatements):
        return one.block is other.block and _meet(one.region, other.region)
    if one.replaced and other.replaced and _meet(one.replaced, other.replaced):
        return True
    if of_one_fix and isinstance(one.edit, _ON_STATEMENTS) and isinstance(other.edit, _ON_STATEMENTS):
        return _swallows(one, other, or_equals=False) or _swallows(other, one, or_equals=False)
    return _swallows(one, other) or _swallows(other, one)


def own_overlap(placed: Sequence[Placed]) -> bool:
    """Whether edits of one fix get in each other's way."""
    return any(overlap(one, other, of_one_fix=True) for i, one in enumerate(placed) for other in placed[:i])


def _place_keyword(tree: Tree, edit: SetKeyword | RemoveKeyword) -> Placed:
    call = tree.call(edit.call)
    arg = keyword_argument(call, edit.name)
    if isinstance(edit, SetKeyword):
        parse_expression(edit.value)
        _check_string(tree, call, edit.value)
    elif arg is None:
        raise Unfit(f"what it edits is not there: the call at line {edit.call.line} has no keyword {edit.name}")
    # the span of the keyword's value stands for the whole of the argument: nothing else lies in it
    value = None
    if arg is not None:
        value = next(span for span, node in tree.expressions.items() if node is arg.value)
    return Placed(edit, call, region=edit.call, replaced=value)


def _place_wrapper(tree: Tree, edit: WrapStatements) -> Placed:
    first, last = tree.statement(edit.first), tree.statement(edit.last)
    parse_header(edit.header)
    block = tree.block(first)
    if tree.block(last) is not block or edit.last < edit.first:
        raise Unfit(f"the statements at lines {edit.first.line} and {edit.last.line} are not of one block, in order")
    region = Span(edit.first.line, edit.first.column, edit.last.end_line, edit.last.end_column)
    return Placed(edit, first, last, region=region, block=block)


def _check_string(tree: Tree, node: cst.CSTNode, source: str) -> None:
    """Before Python 3.12 an f-string holds no backslash, line end or quote of its own."""
    inside = any(isinstance(each, cst.FormattedString) for each in tree.ancestors(node))
    if inside and any(letter in source for letter in "\"'\\\n#"):
        raise Unfit("what it would put in cannot stand inside an f-string")


def _touches_word(tree: Tree, node: cst.BaseExpression, span: Span) -> bool:
    if isinstance(node, cst.GeneratorExp) and not node.lpar:  # the parentheses are the call's
        return False
    before = tree.lines[span.line - 1][: span.column][-1:]
    after = tree.lines[span.end_line - 1][span.end_column :][:1]
    return any(letter.isalnum() or letter == "_" for letter in (before, after))


def _swallows(one: Placed, other: Placed, *, or_equals: bool = True) -> bool:
    """Whether `one` takes away what `other` applies to."""
    outer, inner = one.replaced, other.region
    if outer is None or inner is None or (outer == inner and not or_equals):
        return False
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    return starts and (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)


def _meet(one: Span, other: Span) -> bool:
    return (one.line, one.column) < (other.end_line, other.end_column) and (other.line, other.column) < (
        one.end_line,
        one.end_column,
    )
