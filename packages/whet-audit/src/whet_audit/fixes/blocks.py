"""Insert, replace, remove and wrap statements of a block; statements that share a line are split where need be.

Comments right above a statement belong to it and stay there; comments inside a statement that goes away move above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from whet_audit.fixes.expressions import lost_comments
from whet_audit.fixes.location import Statement, Unfit

Lines = Sequence[cst.EmptyLine]
Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
_PASS = cst.SimpleStatementLine(body=(cst.Pass(),))


@dataclass
class Changes:
    """What happens to statements, by the node of the original tree. headers: what is opened before a statement."""

    before: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    after: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    replaced: dict[cst.CSTNode, str] = field(default_factory=dict)
    headers: dict[cst.CSTNode, str] = field(default_factory=dict)
    closed: set[cst.CSTNode] = field(default_factory=set)

    def touch(self, node: cst.CSTNode) -> bool:
        """Whether anything happens at the statement `node`."""
        return any(node in each for each in (self.before, self.after, self.replaced, self.headers, self.closed))


def parse_statements(source: str, newline: str = "\n") -> cst.Module:
    """The statements that `source` spells, their line ends those of the file they go to. Raises Unfit."""
    text = newline.join([*re.split("\r\n?|\n", source.rstrip()), ""]) if source.strip() else ""
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise Unfit(f"what it would put in does not parse: {source.strip()!r}") from error


def parse_header(header: str) -> cst.BaseCompoundStatement:
    """The compound statement that `header` opens, its body a `pass`. Raises Unfit."""
    try:
        statement = cst.parse_statement(f"{header.strip()} pass")
    except cst.ParserSyntaxError as error:
        raise Unfit(f"what it would wrap statements in does not parse: {header.strip()!r}") from error
    if not isinstance(statement, cst.BaseCompoundStatement):
        raise Unfit(f"what it would wrap statements in opens no block: {header.strip()!r}")
    return statement


def rebuilt_module(original: cst.Module, updated: cst.Module, changes: Changes) -> cst.Module:
    """The module with the changes to its own statements."""
    if not any(changes.touch(node) for line in original.body for node in _members(line)):
        return updated
    header, own = _split_header(updated.header)
    first = updated.body[0]
    body = [first.with_changes(leading_lines=(*own, *first.leading_lines)), *updated.body[1:]]
    builder = _Builder(changes, original.default_newline, None)
    for line, new in zip(original.body, body, strict=True):
        builder.add(line, new)
    return updated.with_changes(header=header, body=builder.out, footer=(*builder.rest(), *updated.footer))


def rebuilt_block(
    original: cst.IndentedBlock, updated: cst.IndentedBlock, changes: Changes, newline: str
) -> cst.IndentedBlock:
    """The block with the changes to its statements; a `pass` where none is left."""
    builder = _Builder(changes, newline, updated.indent)
    for line, new in zip(original.body, updated.body, strict=True):
        builder.add(line, new)
    return updated.with_changes(body=builder.out or (_PASS,), footer=(*builder.rest(), *updated.footer))


def rebuilt_suite(
    original: cst.SimpleStatementSuite,
    updated: cst.SimpleStatementSuite,
    changes: Changes,
    newline: str,
    indent: str | None,
) -> cst.BaseSuite:
    """A suite on the line of its header, with the changes: still on that line where they leave one line."""
    builder = _Builder(changes, newline, indent)
    builder.add(
        cst.SimpleStatementLine(body=original.body),
        cst.SimpleStatementLine(body=updated.body, trailing_whitespace=updated.trailing_whitespace),
    )
    body, rest = builder.out or [_PASS], builder.rest()
    if not builder.out:  # the `pass` takes over the comment at the end of the line
        rest = [line for line in rest if line.comment is not updated.trailing_whitespace.comment]
    only = body[0]
    if len(body) == 1 and isinstance(only, cst.SimpleStatementLine) and not only.leading_lines and not rest:
        space = updated.trailing_whitespace if only is _PASS else only.trailing_whitespace
        return updated.with_changes(body=only.body, trailing_whitespace=space)
    return cst.IndentedBlock(body=body, indent=indent, footer=rest)


class _Builder:
    """The new lines of one block, put together in the order of the old ones.

    pending: comments and blank lines that go above whatever comes next.
    """

    def __init__(self, changes: Changes, newline: str, indent: str | None) -> None:
        self.out: list[Line] = []
        self._changes = changes
        self._newline = newline
        self._indent = indent
        self._pending: list[cst.EmptyLine] = []
        self._outside: list[Line] = []  # while statements are wrapped: what came before
        self._header: cst.BaseCompoundStatement | None = None

    def add(self, original: cst.BaseStatement, updated: cst.BaseStatement) -> None:
        """The next line of the old block, before and after what happened inside it."""
        assert isinstance(updated, Line)
        if not any(self._changes.touch(node) for node in _members(original)):
            self._emit(updated)
        elif isinstance(original, cst.SimpleStatementLine) and isinstance(updated, cst.SimpleStatementLine):
            self._add_line(original, updated)
        elif isinstance(original, cst.BaseCompoundStatement) and isinstance(updated, cst.BaseCompoundStatement):
            above, own = _split_comments(updated.leading_lines)
            self._hold(above)
            self._enter(original)
            self._hold(own)
            if original in self._changes.replaced:
                self._replace_compound(original)
            else:
                self._emit(updated.with_changes(leading_lines=()))
            self._leave(original)

    def rest(self) -> list[cst.EmptyLine]:
        """Comments that found nothing below them: the footer of the block."""
        lines, self._pending = self._pending, []
        return lines if any(line.comment is not None for line in lines) else []

    def _add_line(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> None:
        above, own = _split_comments(updated.leading_lines)
        self._hold(above)
        sharing: list[cst.BaseSmallStatement] = []  # statements that still share a line
        last = original.body[-1]
        for old, new in zip(original.body, updated.body, strict=True):
            if old in self._changes.before or old in self._changes.headers:
                self._flush(sharing)
            self._enter(old)
            if old is original.body[0]:
                self._hold(own)
            trailing = updated.trailing_whitespace if old is last else None
            if old in self._changes.replaced:
                trailing = self._replace_small(old, sharing, trailing)
            else:
                sharing.append(new)
            if old is last or old in self._changes.after or old in self._changes.closed:
                self._flush(sharing, trailing, ends_line=old is last and old not in self._changes.replaced)
            self._leave(old)

    def _enter(self, statement: Statement) -> None:
        for source in self._changes.before.get(statement, ()):
            self._emit_source(parse_statements(source, self._newline))
        if statement in self._changes.headers:
            header = parse_header(self._changes.headers[statement])
            self._header = header.with_changes(leading_lines=self._pending)
            self._pending = []
            self._outside, self.out = self.out, []

    def _leave(self, statement: Statement) -> None:
        if statement in self._changes.closed:
            assert self._header is not None
            block = cst.IndentedBlock(body=self.out or (_PASS,), indent=self._indent, footer=self.rest())
            self.out = [*self._outside, self._header.with_changes(body=block)]
        for source in self._changes.after.get(statement, ()):
            self._emit_source(parse_statements(source, self._newline))

    def _replace_small(
        self,
        old: cst.BaseSmallStatement,
        sharing: list[cst.BaseSmallStatement],
        trailing: cst.TrailingWhitespace | None,
    ) -> cst.TrailingWhitespace | None:
        """Put in what replaces `old`; the end of the line is returned where it is still to be written."""
        new = parse_statements(self._changes.replaced[old], self._newline)
        self._hold_comments(lost_comments(old, new))
        if not new.body:
            self._hold(new.header)
            return trailing
        only = new.body[0]
        if len(new.body) == 1 and isinstance(only, cst.SimpleStatementLine) and not _has_comments(new):
            sharing.extend(only.body)
            return trailing
        self._flush(sharing)
        final = new.body[-1]
        if trailing is not None and trailing.comment is not None:
            if isinstance(final, cst.SimpleStatementLine) and final.trailing_whitespace.comment is None:
                final = final.with_changes(trailing_whitespace=trailing)
                new = new.with_changes(body=[*new.body[:-1], final])
            else:
                self._hold_comments([trailing.comment])
        self._emit_source(new)
        return None

    def _replace_compound(self, old: cst.BaseCompoundStatement) -> None:
        new = parse_statements(self._changes.replaced[old], self._newline)
        first = new.body[0] if new.body else None
        decorated = cst.FunctionDef | cst.ClassDef
        # The span of a function starts at its `def`, so a bare function in its place keeps the decorators.
        if isinstance(old, decorated) and isinstance(first, decorated) and not first.decorators:
            first = first.with_changes(decorators=old.decorators, lines_after_decorators=old.lines_after_decorators)
            new = new.with_changes(body=[first, *new.body[1:]])
        self._hold_comments(lost_comments(old.with_changes(leading_lines=()), new))
        self._emit_source(new)

    def _emit_source(self, new: cst.Module) -> None:
        self._hold(new.header)
        for statement in new.body:
            self._emit(statement)
        self._hold(new.footer)

    def _flush(
        self,
        sharing: list[cst.BaseSmallStatement],
        trailing: cst.TrailingWhitespace | None = None,
        *,
        ends_line: bool = False,
    ) -> None:
        """Write out a line; a comment that ended a line of which nothing is left stands alone."""
        if sharing:
            if not ends_line:
                sharing[-1] = sharing[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            self._emit(
                cst.SimpleStatementLine(body=tuple(sharing), trailing_whitespace=trailing or cst.TrailingWhitespace())
            )
            sharing.clear()
        elif trailing is not None and trailing.comment is not None:
            self._hold_comments([trailing.comment])

    def _emit(self, statement: Line) -> None:
        if self._pending:
            self._hold(statement.leading_lines)
            statement = statement.with_changes(leading_lines=self._pending)
            self._pending = []
        self.out.append(statement)

    def _hold(self, lines: Lines) -> None:
        """Keep lines for whatever comes next; blank lines on both sides of what went away don't add up."""
        if lines and lines[0].comment is None:
            while self._pending and self._pending[-1].comment is None:
                self._pending.pop()
        self._pending += lines

    def _hold_comments(self, comments: Sequence[cst.Comment]) -> None:
        self._pending += [cst.EmptyLine(comment=comment) for comment in comments]


def _members(line: cst.BaseStatement) -> Sequence[cst.CSTNode]:
    return line.body if isinstance(line, cst.SimpleStatementLine) else (line,)


def _has_comments(module: cst.Module) -> bool:
    return bool(lost_comments(module, None))


def _split_comments(lines: Lines) -> tuple[Lines, Lines]:
    """Comments right above a statement, and what stands above those."""
    cut = len(lines)
    while cut and lines[cut - 1].comment is not None:
        cut -= 1
    return lines[:cut], lines[cut:]


def _split_header(lines: Lines) -> tuple[Lines, Lines]:
    """The comments at the top of a file that belong to its first statement; never its `#!` and encoding lines."""
    above, own = _split_comments(lines)
    if above:
        return above, own
    cut = 0
    for line in own[:2]:
        value = line.comment.value if line.comment is not None else ""
        cut += value.startswith("#!") or re.search(r"coding[:=]", value) is not None
    return own[:cut], own[cut:]
