"""The control-flow graph of one function: what follows what, which conditions dominate a place, what loops run again.

Each statement is a point; so is each outcome of a condition (`Branch`), so that conditions take part in dominance: a
place runs only where the outcomes that dominate it hold. That covers early returns and continues at any depth.
Source of the dominators: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from whet_audit.source import LoopNode

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_EXITS = ("sys.exit", "exit", "quit", "os._exit", "os.abort")
ENTRY, EXIT, RAISED = 0, 1, 2


class Branch(NamedTuple):
    """An outcome: of an `if`, an `assert` or a loop's header (holds: it is true), an except clause, a case."""

    by: ast.AST
    holds: bool


_Target = int | list[int]  # of a jump: EXIT, RAISED, or the breaks or continues of a loop


class _Frame(NamedTuple):
    """What a jump meets on its way out: a loop with its breaks and continues, or a `finally` with what goes through."""

    breaks: list[int]
    again: list[int]
    passing: list[_Target] | None = None  # of a finally: where the jumps that go through it lead


class FlowGraph:
    """The graph of a function's body, or of a module's. Nested functions and classes are single points."""

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self.points: list[ast.AST | Branch | None] = [None, None, None]
        self.following: list[list[int]] = [[], [], []]
        self.thrown: set[tuple[int, int]] = set()  # edges that only an exception takes
        self.place: dict[ast.AST, int] = {}  # of each statement; of a loop the header, which runs before each turn
        self.setup: dict[ast.AST, int] = {}  # of a for-loop: where what it runs over is computed, once
        self.outcomes: dict[Branch, int] = {}
        self._frames: list[_Frame] = []
        self._repeated: dict[ast.AST, set[int]] = {}
        self._join(self._block(body, [ENTRY]), EXIT)

    @cached_property
    def dominators(self) -> list[int | None]:
        """The immediate dominator of each point; None of the entry and of what nothing leads to."""
        return immediate_dominators(self.following)

    @cached_property
    def preceding(self) -> list[list[int]]:
        """The points from which each point is reached, exceptions apart."""
        found: list[list[int]] = [[] for _ in self.points]
        for point, targets in enumerate(self.following):
            for target in targets:
                if (point, target) not in self.thrown:
                    found[target].append(point)
        return found

    @cached_property
    def finishing(self) -> set[int]:
        """The points from which the function can return, or go on for ever: all others end in an exception."""
        endless = [
            point
            for loop, point in self.place.items()
            if isinstance(loop, ast.While) and Branch(loop, holds=False) not in self.outcomes
        ]
        return self._back_from([EXIT, *endless], set())

    def dominated(self, by: int) -> list[ast.stmt]:
        """The statements that run only where a point was passed."""
        return [
            statement
            for statement, point in self.place.items()
            if isinstance(statement, ast.stmt) and self.is_dominated(point, by)
        ]

    def dominating(self, point: int) -> list[int]:
        """The points that every way to a point passes, nearest first, without the point itself."""
        found = []
        up = self.dominators[point]
        while up is not None:
            found.append(up)
            up = self.dominators[up]
        return found

    def is_dominated(self, point: int, by: int) -> bool:
        return point == by or by in self.dominating(point)

    def repeated(self, loop: ast.AST) -> set[int]:
        """The points from which a loop's next turn can begin: what leads out of it for good is not among them."""
        if loop not in self._repeated:
            header = self.place[loop]
            ends = [point for point in self.preceding[header] if self.is_dominated(point, header)]
            self._repeated[loop] = self._back_from(ends, {header}) if ends else set()
        return self._repeated[loop]

    def _back_from(self, starts: Sequence[int], known: set[int]) -> set[int]:
        waiting = [start for start in starts if start not in known]
        known = known | set(waiting)
        while waiting:
            for before in self.preceding[waiting.pop()]:
                if before not in known:
                    known.add(before)
                    waiting.append(before)
        return known

    # --- building -----------------------------------------------------------------------------------------------------

    def _point(self, what: ast.AST | Branch, ends: Sequence[int]) -> int:
        self.points.append(what)
        self.following.append([])
        point = len(self.points) - 1
        self._join(ends, point)
        return point

    def _join(self, ends: Sequence[int], target: int) -> None:
        for end in ends:
            self.following[end].append(target)

    def _branch(self, by: ast.AST, point: int, *, holds: bool) -> list[int]:
        branch = Branch(by, holds)
        self.outcomes[branch] = self._point(branch, [point])
        return [self.outcomes[branch]]

    def _block(self, statements: Sequence[ast.stmt], ends: list[int]) -> list[int]:
        for statement in statements:
            ends = self._statement(statement, ends)
        return ends

    def _statement(self, statement: ast.stmt, ends: list[int]) -> list[int]:
        """Add a statement after the ends, and return the new ends: none where nothing follows it."""
        if isinstance(statement, ast.For | ast.AsyncFor):
            self.setup[statement] = self._point(statement, ends)
            ends = [self.setup[statement]]
        point = self.place[statement] = self._point(statement, ends)
        match statement:
            case ast.If():
                held = self._block(statement.body, self._branch(statement, point, holds=True))
                return held + self._block(statement.orelse, self._branch(statement, point, holds=False))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(statement, point)
            case ast.With() | ast.AsyncWith():
                return self._block(statement.body, [point])
            case ast.Try() | ast.TryStar():
                return self._try(statement, point)
            case ast.Match():
                return self._match(statement, point)
            case ast.Assert():
                self._join(self._branch(statement, point, holds=False), RAISED)
                return self._branch(statement, point, holds=True)
            case ast.Return():
                return self._leave([point], EXIT)
            case ast.Raise():
                return self._leave([point], RAISED)
            case ast.Break() | ast.Continue():
                return self._jump(statement, point)
            case ast.Expr(value=ast.Call(func=called)) if ast.unparse(called) in _EXITS:
                return self._leave([point], RAISED)
        return [point]

    def _loop(self, loop: LoopNode, point: int) -> list[int]:
        frame = _Frame([], [])
        self._frames.append(frame)
        turn = self._block(loop.body, self._branch(loop, point, holds=True))
        self._frames.pop()
        self._join([*turn, *frame.again], point)
        is_endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
        after = [] if is_endless else self._block(loop.orelse, self._branch(loop, point, holds=False))
        return after + frame.breaks

    def _jump(self, statement: ast.Break | ast.Continue, point: int) -> list[int]:
        loop = next((one for one in reversed(self._frames) if one.passing is None), None)
        return (
            []
            if loop is None
            else self._leave([point], loop.breaks if isinstance(statement, ast.Break) else loop.again)
        )

    def _leave(self, ends: list[int], target: _Target) -> list[int]:
        """Leave for a target, through the innermost `finally` on the way; that one goes on from there."""
        for frame in reversed(self._frames):
            if frame.passing is not None:
                frame.again.extend(ends)
                if not any(one is target for one in frame.passing):
                    frame.passing.append(target)
                return []
            if isinstance(target, list) and (target is frame.breaks or target is frame.again):
                break
        if isinstance(target, list):
            target.extend(ends)
        else:
            self._join(ends, target)
        return []

    def _try(self, statement: ast.Try | ast.TryStar, point: int) -> list[int]:
        frame = _Frame([], [], [])
        if statement.finalbody:
            self._frames.append(frame)
        ends = self._block(statement.orelse, self._block(statement.body, [point]))
        for handler in statement.handlers:
            caught = self._branch(handler, point, holds=True)
            self.thrown.add((point, caught[0]))
            ends = ends + self._block(handler.body, caught)
        if not statement.finalbody:
            return ends
        self._frames.pop()
        after = self._block(statement.finalbody, [*ends, *frame.again])
        for target in frame.passing or ():
            self._leave(after, target)
        return after if ends else []

    def _match(self, statement: ast.Match, point: int) -> list[int]:
        ends: list[int] = []
        is_total = False
        for case in statement.cases:
            ends = ends + self._block(case.body, self._branch(case, point, holds=True))
            pattern = case.pattern
            is_total = is_total or (isinstance(pattern, ast.MatchAs) and pattern.pattern is None and case.guard is None)
        return ends if is_total else [*ends, point]


def immediate_dominators(following: Sequence[Sequence[int]], entry: int = ENTRY) -> list[int | None]:
    """The nearest point that every way from the entry to each point passes.

    Args:
        following: The points that follow each point.
        entry: Where all ways begin.

    Returns:
        A point for each point; None for the entry and for what no way leads to.
    """
    order = _postorder(following, entry)
    rank = {point: index for index, point in enumerate(order)}
    before: dict[int, list[int]] = {point: [] for point in order}
    for point in order:
        for target in following[point]:
            before[target].append(point)
    found: dict[int, int] = {entry: entry}
    is_changed = True
    while is_changed:
        is_changed = False
        for point in reversed(order[:-1]):  # the entry is last
            known = [one for one in before[point] if one in found]
            nearest = known[0]
            for other in known[1:]:
                nearest = _common(found, rank, nearest, other)
            if found.get(point) != nearest:
                found[point] = nearest
                is_changed = True
    return [None if point == entry else found.get(point) for point in range(len(following))]


def _common(found: dict[int, int], rank: dict[int, int], one: int, other: int) -> int:
    while one != other:
        while rank[one] < rank[other]:
            one = found[one]
        while rank[other] < rank[one]:
            other = found[other]
    return one


def _postorder(following: Sequence[Sequence[int]], entry: int) -> list[int]:
    """The points that can be reached, each after all that follow it, but for cycles."""
    order: list[int] = []
    seen = {entry}
    stack = [(entry, iter(following[entry]))]
    while stack:
        point, targets = stack[-1]
        target = next((one for one in targets if one not in seen), None)
        if target is None:
            order.append(point)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(following[target])))
    return order
