"""Apply edits, already placed in the tree and known not to overlap, in one walk over it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import libcst as cst

from whet_audit.finding import AddDecorator, AddImport, RemoveKeyword, SetKeyword
from whet_audit.fixes.blocks import Changes, rebuilt_block, rebuilt_module, rebuilt_suite
from whet_audit.fixes.calls import keyword_argument, remove_keyword, set_keyword
from whet_audit.fixes.expressions import in_place_of, lost_comments, parse_expression
from whet_audit.fixes.imports import add_import
from whet_audit.fixes.location import Tree
from whet_audit.fixes.placement import Placed, fill


class Rewriter(cst.CSTTransformer):
    """One walk that makes every change; subtrees without any are not entered."""

    def __init__(self, tree: Tree, placed: Iterable[Placed]) -> None:
        super().__init__()
        self._tree = tree
        self._changes = Changes()
        self._expressions: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._keywords: defaultdict[cst.CSTNode, list[SetKeyword | RemoveKeyword]] = defaultdict(list)
        self._decorators: defaultdict[cst.CSTNode, list[str]] = defaultdict(list)
        self._imports: list[AddImport] = []
        self._lifted: defaultdict[cst.CSTNode, list[cst.Comment]] = defaultdict(list)  # comments that move above
        self._touched: set[cst.CSTNode] = {tree.module}
        for each in {each.edit: each for each in placed}.values():  # two fixes may share an edit
            self._plan(each)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether something changes within `node`."""
        return node in self._touched

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        """The node with its changes; those inside it are made already."""
        if original_node not in self._touched:
            return updated_node
        updated = updated_node
        if original_node in self._expressions:
            updated = self._expressions[original_node]
        for edit in self._keywords.get(original_node, ()):
            assert isinstance(updated, cst.Call)
            if isinstance(edit, SetKeyword):
                updated = set_keyword(updated, edit.name, edit.value)
            else:
                updated = remove_keyword(updated, edit.name)
        for source in self._decorators.get(original_node, ()):
            updated = _decorated(updated, source)
        if original_node in self._lifted:
            lines = [cst.EmptyLine(comment=comment) for comment in self._lifted[original_node]]
            leading: tuple[cst.EmptyLine, ...] = tuple(updated.leading_lines)  # type: ignore[attr-defined]
            updated = updated.with_changes(leading_lines=(*leading, *lines))
        return self._rebuilt(original_node, updated)

    def _rebuilt(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        newline = self._tree.module.default_newline
        if isinstance(original, cst.IndentedBlock) and isinstance(updated, cst.IndentedBlock):
            return rebuilt_block(original, updated, self._changes, newline)
        if isinstance(original, cst.SimpleStatementSuite) and isinstance(updated, cst.SimpleStatementSuite):
            around = (node for node in self._tree.ancestors(original) if isinstance(node, cst.IndentedBlock))
            block = next(around, None)
            return rebuilt_suite(original, updated, self._changes, newline, block.indent if block else None)
        if isinstance(original, cst.Module) and isinstance(updated, cst.Module):
            updated = rebuilt_module(original, updated, self._changes)
            for wanted in self._imports:
                updated = add_import(updated, wanted)
        return updated

    def _plan(self, placed: Placed) -> None:
        edit, node = placed.edit, placed.node
        if isinstance(edit, AddImport):
            self._imports.append(edit)
            return
        self._touched.update((node, *self._tree.ancestors(node)))
        if isinstance(edit, AddDecorator):
            self._decorators[node].append(edit.source)
        elif isinstance(edit, SetKeyword | RemoveKeyword):
            assert isinstance(node, cst.Call)
            self._keywords[node].append(edit)
            arg = keyword_argument(node, edit.name)
            if arg is not None:
                new = parse_expression(edit.value) if isinstance(edit, SetKeyword) else None
                old = (
                    arg.value
                    if new is not None
                    else arg.with_changes(
                        comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
                    )
                )
                self._lift(node, lost_comments(old, new))
        elif isinstance(node, cst.BaseExpression):
            new = parse_expression(placed.source)
            self._lift(node, lost_comments(node, new))
            parent = self._tree.parents[node]
            self._expressions[node] = in_place_of(node, new, parent, touches_word=placed.touches_word)
        else:
            fill(self._changes, placed)

    def _lift(self, node: cst.CSTNode, comments: list[cst.Comment]) -> None:
        """Have `comments`, from inside what goes away, put above the statement or clause that `node` lies in."""
        if comments:
            owner = next(each for each in self._tree.ancestors(node) if hasattr(each, "leading_lines"))
            self._lifted[owner] += comments


def _decorated(node: cst.CSTNode, source: str) -> cst.CSTNode:
    assert isinstance(node, cst.FunctionDef | cst.ClassDef)
    new = cst.Decorator(parse_expression(source.strip().removeprefix("@")))
    if any(new.deep_equals(each.with_changes(leading_lines=())) for each in node.decorators):
        return node
    # comment lines between the decorators and `def` come before it, which puts it right above
    lines = node.lines_after_decorators
    return node.with_changes(
        decorators=(*node.decorators, new.with_changes(leading_lines=lines)), lines_after_decorators=()
    )
