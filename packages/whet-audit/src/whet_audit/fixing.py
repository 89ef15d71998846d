"""Apply fixes to a source: whole or not at all, with comments and formatting kept, and a result that compiles.

Imports libcst, which takes a while to load: import this file only where fixes are applied.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import libcst as cst

from whet_audit.finding import Fix
from whet_audit.fixes.location import Tree, Unfit, parse
from whet_audit.fixes.placement import Placed, overlap, own_overlap, place
from whet_audit.fixes.rewriter import Rewriter

OVERLAPS = "overlaps with another fix that was applied"


@dataclass(frozen=True)
class Applied:
    """The new source, the fixes that are in it, and those that are not, each with the reason."""

    source: str
    applied: tuple[Fix, ...]
    skipped: tuple[tuple[Fix, str], ...]


@dataclass(frozen=True)
class _Ready:
    """A fix whose edits all have their places."""

    index: int
    fix: Fix
    placed: tuple[Placed, ...]


def apply_fixes(source: str, fixes: Sequence[Fix]) -> Applied:
    """Apply each fix whole, or skip it with a reason; the earlier of two that overlap wins.

    Spans are those of `source`, as text without a byte order mark. A source that cannot be rewritten comes back as it
    is, every fix skipped. A skipped fix that only overlapped may be applied in a second round.
    """
    if not fixes:
        return Applied(source, (), ())
    try:
        compiles = _Compiles(source)  # first: libcst's parser has no limit of depth
        tree = parse(source)
    except Unfit as unfit:
        return Applied(source, (), tuple((fix, str(unfit)) for fix in fixes))
    ready: list[_Ready] = []
    skipped: dict[int, str] = {}
    for index, fix in enumerate(fixes):
        try:
            ready.append(_placed(tree, index, fix, ready))
        except Unfit as unfit:
            skipped[index] = str(unfit)
    kept, text = _sound(tree, [], ready, compiles, skipped)
    return Applied(
        source=text if kept else source,
        applied=tuple(each.fix for each in kept),
        skipped=tuple((fixes[index], skipped[index]) for index in sorted(skipped)),
    )


def unified_diff(path: PurePath | str, before: str, after: str) -> str:
    """The change of a file in the form that `git apply` takes; empty where there is none."""
    name = PurePath(path).as_posix().lstrip("/")
    end = "\t" if " " in name else ""  # as git does, so that `patch` reads the whole name
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}{end}", f"b/{name}{end}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _placed(tree: Tree, index: int, fix: Fix, others: Sequence[_Ready]) -> _Ready:
    placed = tuple(place(tree, edit) for edit in fix.edits)
    if own_overlap(placed):
        raise Unfit("its own edits overlap")
    for other in others:
        if any(overlap(one, two, of_one_fix=False) for one in placed for two in other.placed):
            raise Unfit(OVERLAPS)
    return _Ready(index, fix, placed)


class _Compiles:
    """Whether a text compiles as far as the original did: notebooks' cells may parse and yet not compile."""

    def __init__(self, source: str) -> None:
        self._flags = 0
        if self.complaint(source):
            self._flags = ast.PyCF_ONLY_AST
            complaint = self.complaint(source)
            if complaint:
                raise Unfit(f"Python cannot parse the file: {complaint}")

    def complaint(self, source: str) -> str:
        """What Python says against `source`, or nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and such are the file's own
            try:
                compile(source, "<fixed>", "exec", flags=self._flags, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                return str(error) or type(error).__name__
        return ""


def _sound(
    tree: Tree, kept: list[_Ready], more: list[_Ready], compiles: _Compiles, skipped: dict[int, str]
) -> tuple[list[_Ready], str]:
    """Those of `more` that can be added to `kept` with a result that compiles, found by halves; and that result."""
    text, complaint = _rewritten(tree, [*kept, *more], compiles)
    if not complaint:
        return [*kept, *more], text
    if len(more) == 1:
        skipped[more[0].index] = f"the result would not compile: {complaint}"
        return kept, _rewritten(tree, kept, compiles)[0]
    middle = len(more) // 2
    kept, _ = _sound(tree, kept, more[:middle], compiles, skipped)
    return _sound(tree, kept, more[middle:], compiles, skipped)


def _rewritten(tree: Tree, ready: Sequence[_Ready], compiles: _Compiles) -> tuple[str, str]:
    """The source with the fixes, and what speaks against it."""
    if not ready:
        return tree.source, ""
    try:
        module = tree.module.visit(Rewriter(tree, (each for fix in ready for each in fix.placed)))
    except (cst.CSTValidationError, cst.ParserSyntaxError, RecursionError) as error:
        return tree.source, str(error) or type(error).__name__
    assert isinstance(module, cst.Module)
    return module.code, compiles.complaint(module.code)


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as git does; str.splitlines knows eight more line ends."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
