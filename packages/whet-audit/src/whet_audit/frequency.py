"""How often a place runs in each unit of work, a turn of a step loop or a call: by the control-flow graph around it."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from whet_audit.constants import Constants
from whet_audit.flow_graph import Branch, FlowGraph
from whet_audit.odds import ONCE, SELDOM, Odds, fills
from whet_audit.project import Project
from whet_audit.source import COMPREHENSIONS, Function, LoopNode, Module
from whet_audit.written_settings import WrittenSettings

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAST = 1 / 4  # of conditions of which nothing is known, however many there are
_UNKNOWN_RANGE = 8  # turns of a loop over a range inside the step: layers, images of a small batch
_UNKNOWN_ITEMS = 4  # of a loop over what a dict holds: terms of a loss, states
_UNKNOWN_TURNS = 2  # of other loops: rows, chains, files
_MANY = 100  # turns of a loop over all parameters or modules of a model, or all elements of a tensor
_VIEWS = ("items", "values", "keys")
_FLAT = re.compile(r"\.(flatten|ravel)\(\)|\.(view|reshape)\(-1\)")


class Frequency(NamedTuple):
    """times: a unit of work. guard: what keeps a place out of most units, in words. loops: that lie between, in words.

    assumes: what `times` rests on besides the code, in words.
    """

    times: float
    guard: str
    loops: str
    assumes: str


class Condition(NamedTuple):
    """What has to hold for a place to run. share: of the times that it is asked; None where nothing is known."""

    words: str
    share: float | None


class Frequencies:
    """Tells how often places of a project run. makes_step: whether a call is, or makes, a backward pass or a step."""

    def __init__(
        self,
        project: Project,
        constants: Constants,
        settings: WrittenSettings,
        makes_step: Callable[[ast.Call, Module], bool],
    ) -> None:
        self._constants = constants
        self._makes_step = makes_step
        self._odds = Odds(project, constants, settings)
        self._graphs: dict[Function, FlowGraph] = {}
        self._outcomes: dict[tuple[Branch, ast.AST], Condition] = {}
        self._steps: dict[Function, list[ast.Call]] = {}

    def of(self, module: Module, node: ast.AST, unit: ast.AST) -> Frequency:
        """How often a place runs in each turn of a loop, or in each call of a function, that it lies in."""
        conditions = list(self.conditions(module, node, unit))
        seldom = [one for one in conditions if one.share is not None and one.share < SELDOM]
        known = math.prod(one.share for one in conditions if one.share is not None)
        unknown = max(_LEAST, 0.5 ** sum(one.share is None for one in conditions))
        loops = repeats(module, node, unit)
        known_turns = [self._turns(module, loop, node) for loop in loops]
        turns = [_assumed_turns(loop) if one is None else one for loop, one in zip(loops, known_turns, strict=True)]
        open_ended = [
            f"{assumed} times {_header(module, loop)}"
            for loop, one, assumed in zip(loops, known_turns, turns, strict=True)
            if one is None
        ]
        asked = [f"{one.words} holds every other time" for one in conditions if one.share is None]
        return Frequency(
            times=known * unknown * math.prod(turns),
            guard=min(seldom, key=lambda one: one.share or 0.0).words if seldom else "",
            loops=", ".join(_header(module, loop) for loop in reversed(loops)),
            assumes=", ".join([*open_ended[:1], *asked[:1]]),
        )

    def conditions(self, module: Module, node: ast.AST, unit: ast.AST) -> Iterator[Condition]:
        """All that has to hold for a place to run, once its unit of work has begun: also around closures."""
        within = unit if isinstance(unit, _LOOPS) else None
        while True:
            yield from self._in_function(module, node, unit, within)
            function, _ = _placed(module, node)
            is_there = function.node is unit or (within is not None and module.function_of(within) is function)
            if is_there or isinstance(function.node, ast.Module):
                return
            node = function.node

    def _in_function(
        self, module: Module, node: ast.AST, unit: ast.AST, within: LoopNode | None
    ) -> Iterator[Condition]:
        yield from self._in_expression(module, node, unit)
        function, statement = _placed(module, node)
        graph = self.graph(function)
        point = graph.setup[statement] if _is_outside(statement, module, node) else graph.place[statement]
        around = list(loops_around(module, node))
        if graph.dominators[point] is None:
            yield Condition("nothing leads here", 0.0)
            return
        if within in around and within is not statement and point not in graph.repeated(within):
            yield Condition("the loop ends here", ONCE)
        for up in graph.dominating(point):
            branch = graph.points[up]
            if not isinstance(branch, Branch):
                continue
            if isinstance(branch.by, _LOOPS):
                if branch.by is within:
                    return
                continue
            if all(loop in around for loop in loops_around(module, branch.by)):
                key = (branch, unit)
                if key not in self._outcomes:
                    self._outcomes[key] = self._outcome(module, graph, up, branch, unit)
                yield self._outcomes[key]

    def graph(self, function: Function) -> FlowGraph:
        if function not in self._graphs:
            self._graphs[function] = FlowGraph(function.body)
        return self._graphs[function]

    def _turns(self, module: Module, loop: ast.AST, node: ast.AST) -> int | None:
        """The turns of a loop, or of a comprehension's first one, that come by a node; None where nothing says it."""
        if isinstance(loop, _LOOPS):
            function, statement = _placed(module, node)
            graph = self.graph(function)
            if loop in graph.place and statement is not loop and graph.place[statement] not in graph.repeated(loop):
                return 1  # the loop ends here
        one = loop.generators[0] if isinstance(loop, COMPREHENSIONS) else loop
        return self.turns(module, one) if isinstance(one, ast.comprehension | ast.For | ast.While) else None

    def turns(self, module: Module, loop: LoopNode | ast.comprehension) -> int | None:
        """How many turns a loop has, by a literal, a range or the default of an option; None where nothing says it."""
        over = None if isinstance(loop, ast.While) else loop.iter
        while isinstance(over, ast.Call) and over.args and getattr(over.func, "id", "") in ("enumerate", "tqdm", "zip"):
            over = over.args[0]
        if isinstance(over, ast.Tuple | ast.List):
            return len(over.elts)
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in _VIEWS:
            made = over.func.value
            given = [made, *made.args] if isinstance(made, ast.Call) else [made]
            return next((len(one.keys) for one in given if isinstance(one, ast.Dict)), None)
        if isinstance(over, ast.Call) and getattr(over.func, "id", "") in ("range", "trange") and over.args:
            first = self._constants.value(module, over.args[0]) if len(over.args) > 1 else 0
            last = self._constants.value(module, over.args[min(1, len(over.args) - 1)])
            by = self._constants.value(module, over.args[2]) if len(over.args) > 2 else 1
            if isinstance(first, int) and isinstance(last, int) and isinstance(by, int) and by:
                return max(0, len(range(first, last, by)))
        return None

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _outcome(self, module: Module, graph: FlowGraph, point: int, branch: Branch, unit: ast.AST) -> Condition:
        by, holds = branch
        if isinstance(by, ast.ExceptHandler):
            return Condition("an exception is caught", 0.0)
        if not isinstance(by, ast.If | ast.Assert):
            return Condition("a case matches", None)
        words = module.shown(by.test) if holds else f"not ({module.shown(by.test)})"
        if point not in graph.finishing:
            return Condition(words, 0.0)  # a check of the input that fails
        other = graph.outcomes[Branch(by, not holds)]
        loop = next(loops_around(module, by), None)
        if other not in graph.finishing or (loop is not None and other not in graph.repeated(loop)):
            return Condition(words, 1.0)  # whatever the other outcome does, it does once
        regions = {holds: graph.dominated(point), not holds: graph.dominated(other)}
        if self._takes_step(module, regions[holds]):
            return Condition(words, 1.0)  # the optimiser's step is the unit of work
        return Condition(words, self._share(module, by.test, unit, holds, regions))

    def _share(
        self, module: Module, test: ast.expr, unit: ast.AST, holds: bool, regions: dict[bool, list[ast.stmt]]
    ) -> float | None:
        """The share of times that a condition has an outcome. regions: the statements under each of the two."""
        for outcome in (True, False):
            filled = fills(test, holds=outcome, region=regions[outcome])
            if filled is not None and self._stays(module, test, filled, regions[outcome], unit):
                return ONCE if outcome is holds else 1 - ONCE
        share = self._odds.holds(module, test, unit)
        return share if share is None or holds else 1 - share

    def _in_expression(self, module: Module, node: ast.AST, unit: ast.AST) -> Iterator[Condition]:
        """Conditions inside the statement: `a if test else b`, `test and a`."""
        child = node
        for up in module.ancestors(node):
            if isinstance(child, ast.stmt):
                return
            if isinstance(up, ast.IfExp) and child is not up.test:
                statement = module.statement_of(up)
                regions = {True: [statement], False: [statement]}
                share = self._share(module, up.test, unit, child is up.body, regions)
                words = module.shown(up.test)
                yield Condition(words if child is up.body else f"not ({words})", share)
            elif isinstance(up, ast.Assert) and child is up.msg:
                yield Condition(f"not ({module.shown(up.test)})", 0.0)
            elif isinstance(up, ast.BoolOp) and child in up.values:
                for before in up.values[: up.values.index(child)]:
                    share = self._odds.holds(module, before, unit)
                    is_all = isinstance(up.op, ast.And)
                    yield Condition(module.shown(before), share if share is None or is_all else 1 - share)
            child = up

    def _takes_step(self, module: Module, region: list[ast.stmt]) -> bool:
        if not region:
            return False
        function = module.function_of(region[0])
        if function not in self._steps:
            calls = [call for scope in (function, *function.inner.values()) for call in scope.calls]
            self._steps[function] = [call for call in calls if self._makes_step(call, module)]
        inside = set(region)
        return any(not inside.isdisjoint(module.ancestors(call)) for call in self._steps[function])

    @staticmethod
    def _stays(module: Module, by: ast.AST, name: str, region: list[ast.stmt], unit: ast.AST) -> bool:
        """Whether what a condition fills is there in the next unit of work: nothing empties it, and it lives on."""
        function = module.function_of(by)
        root = name.partition(".")[0].partition("[")[0]
        for node in ast.walk(unit):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant) or node in region:
                continue
            if name in [ast.unparse(target) for target in node.targets]:
                return False
        is_local = root in function.bindings or any(one.arg == root for one in function.arguments)
        if root in ("self", "cls") or not is_local:
            return name != root or root in module.top.bindings
        if any(isinstance(node, ast.Global | ast.Nonlocal) and root in node.names for node in ast.walk(function.node)):
            return True
        if not isinstance(unit, _LOOPS):
            return False
        return any(binding.line < unit.lineno for binding in function.bindings.get(root, ()))


def loops_around(module: Module, node: ast.AST) -> Iterator[LoopNode]:
    """The loops of the node's function of which each turn comes by the node, innermost first."""
    child = node
    for up in module.ancestors(node):
        if up in module.function_of_node:
            return
        if isinstance(up, _LOOPS) and not is_outside(up, child):
            yield up
        child = up


def is_outside(loop: LoopNode, child: ast.AST) -> bool:
    """Whether a direct child of a loop runs once, before or after it."""
    return child in loop.orelse or (not isinstance(loop, ast.While) and child is loop.iter)


def is_signature(function: ast.AST, child: ast.AST) -> bool:
    """Whether a direct child of a def runs where the function is made: decorators, defaults."""
    body = getattr(function, "body", [])
    return isinstance(body, list) and child not in body


def repeats(module: Module, node: ast.AST, until: ast.AST) -> list[ast.AST]:
    """The loops and comprehensions between a node and what is around it, innermost first."""
    found: list[ast.AST] = []
    child = node
    for up in module.ancestors(node):
        if up is until:
            break
        is_loop = isinstance(up, _LOOPS) and not is_outside(up, child)
        generators = up.generators if isinstance(up, COMPREHENSIONS) else []
        if is_loop or (generators and child is not generators[0]):
            found.append(up)
        child = up
    return found


def _header(module: Module, loop: ast.AST) -> str:
    if isinstance(loop, ast.While):
        return f"while {module.shown(loop.test)}"
    one = loop.generators[0] if isinstance(loop, COMPREHENSIONS) else loop
    assert isinstance(one, ast.For | ast.AsyncFor | ast.comprehension)
    return f"for each {module.shown(one.target)} in {module.shown(one.iter)}"


def _assumed_turns(loop: ast.AST) -> int:
    """The turns of a loop of which nothing says the number."""
    one = loop.generators[0] if isinstance(loop, COMPREHENSIONS) else loop
    over = ast.unparse(one.iter) if isinstance(one, ast.For | ast.AsyncFor | ast.comprehension) else ""
    if over.rstrip("()").endswith(("parameters", ".modules")) or _FLAT.search(over):
        return _MANY
    if over.endswith(tuple(f".{view}()" for view in _VIEWS)):
        return _UNKNOWN_ITEMS
    return _UNKNOWN_RANGE if "range(" in over else _UNKNOWN_TURNS


def _placed(module: Module, node: ast.AST) -> tuple[Function, ast.stmt]:
    """The statement of a function's graph that a node lies in: a class's body runs where the class is made."""
    statement = module.statement_of(node)
    while isinstance(up := module.parents.get(statement), ast.ClassDef):
        statement = up
    return module.function_of(statement), statement


def _is_outside(statement: ast.stmt, module: Module, node: ast.AST) -> bool:
    """Whether a node stands in what a for-loop runs over."""
    if not isinstance(statement, ast.For | ast.AsyncFor) or node is statement:
        return False
    return node is statement.iter or statement.iter in module.ancestors(node)
