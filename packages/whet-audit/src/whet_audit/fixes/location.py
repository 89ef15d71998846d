"""The concrete syntax tree of a source, and the nodes in it at spans that come from `ast`.

The two disagree on where some nodes lie: `ast` counts the parentheses of a tuple and of a generator as theirs, and the
semicolon after a one-line suite as the compound statement's. Both start a decorated function at its `def`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from whet_audit.finding import Span

Statement = cst.BaseSmallStatement | cst.BaseCompoundStatement
Block = cst.Module | cst.IndentedBlock | cst.SimpleStatementSuite

_LINE_END = re.compile("\r\n?|\n")


class Unfit(Exception):
    """A fix cannot be applied to this source; the message is the reason."""


@dataclass(frozen=True)
class Tree:
    """A parsed source. parents: of every node but the module; spans as `ast` has them."""

    source: str
    module: cst.Module
    expressions: Mapping[Span, cst.BaseExpression]
    statements: Mapping[tuple[int, int], tuple[Statement, Span]]
    parents: Mapping[cst.CSTNode, cst.CSTNode]
    lines: tuple[str, ...]

    def expression(self, span: Span) -> cst.BaseExpression:
        """The expression at `span`, or Unfit."""
        found = self.expressions.get(span)
        if found is None:
            raise Unfit(f"what it edits is not there: no expression at line {span.line}, column {span.column + 1}")
        return found

    def call(self, span: Span) -> cst.Call:
        """The call at `span`, or Unfit."""
        found = self.expressions.get(span)
        if not isinstance(found, cst.Call):
            raise Unfit(f"what it edits is not there: no call at line {span.line}, column {span.column + 1}")
        return found

    def statement(self, span: Span) -> Statement:
        """The statement at `span`, one of a block, or Unfit."""
        found, own = self.statements.get((span.line, span.column), (None, span))
        if found is None or not self._ends_together(own, span):
            raise Unfit(f"what it edits is not there: no statement at line {span.line}, column {span.column + 1}")
        if not isinstance(self.parents[found], Block | cst.SimpleStatementLine):
            raise Unfit(f"the elif at line {span.line} is part of another statement")
        return found

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What `node` lies in, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def block(self, statement: Statement) -> Block:
        """The block that `statement` is one of."""
        return next(node for node in self.ancestors(statement) if isinstance(node, Block))

    def text(self, span: Span) -> str:
        """The source at `span`, its lines joined by newlines."""
        lines = list(self.lines[span.line - 1 : span.end_line])
        lines[-1] = lines[-1][: span.end_column]
        lines[0] = lines[0][span.column :]
        return "\n".join(lines)

    def _ends_together(self, own: Span, asked: Span) -> bool:
        if (asked.end_line, asked.end_column) < (own.end_line, own.end_column) or asked.end_line > len(self.lines):
            return False
        between = Span(own.end_line, own.end_column, asked.end_line, asked.end_column)
        return not self.text(between).strip("; \t\\\n")


def parse(source: str) -> Tree:
    """Parse `source`. Raises Unfit where libcst cannot read it or would not give it back letter by letter."""
    try:
        module = cst.parse_module(source)
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)  # a parsed tree holds no node twice
        positions = wrapper.resolve(PositionProvider)
        parents = wrapper.resolve(ParentNodeProvider)
        if module.code != source:
            raise Unfit("the file holds characters that rewriting would lose, such as form feeds")
    except cst.ParserSyntaxError as error:
        raise Unfit(f"libcst cannot parse the file: line {error.raw_line}: {error.message}") from error
    except RecursionError as error:
        raise Unfit("the file nests too deep to be rewritten") from error
    lines = tuple(_LINE_END.split(source))
    expressions: dict[Span, cst.BaseExpression] = {}
    statements: dict[tuple[int, int], tuple[Statement, Span]] = {}
    for node, position in positions.items():
        if isinstance(node, cst.BaseExpression):
            expressions[_expression_span(node, position, positions, lines)] = node
        elif isinstance(node, Statement):
            span = _span(position)
            statements[span.line, span.column] = node, span
    return Tree(source, module, expressions, statements, parents, lines)


def _span(position: CodeRange) -> Span:
    return Span(position.start.line, position.start.column, position.end.line, position.end.column)


def _expression_span(
    node: cst.BaseExpression, position: CodeRange, positions: Mapping[cst.CSTNode, CodeRange], lines: tuple[str, ...]
) -> Span:
    own = _span(position)
    if isinstance(node, cst.Tuple | cst.GeneratorExp) and node.lpar:
        start, end = positions[node.lpar[-1]].start, positions[node.rpar[0]].end
        return Span(start.line, start.column, end.line, end.column)
    if isinstance(node, cst.GeneratorExp):  # the only argument of a call: the call's parentheses count as its own
        return _with_parentheses(own, lines)
    return own


def _with_parentheses(span: Span, lines: tuple[str, ...]) -> Span:
    line, column = span.line, lines[span.line - 1].rfind("(", 0, span.column)
    while column < 0 and line > 1:
        line -= 1
        column = lines[line - 1].split("#")[0].rfind("(")
    end_line, rest = span.end_line, lines[span.end_line - 1][span.end_column :].split("#")[0]
    end_column = span.end_column + rest.find(")") if ")" in rest else -1
    while end_column < 0 and end_line < len(lines):
        end_line += 1
        end_column = lines[end_line - 1].split("#")[0].find(")")
    return Span(line, column, end_line, end_column + 1)
