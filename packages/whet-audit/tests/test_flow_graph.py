"""The control-flow graph: dominators by their definition on random graphs, and what dominates in known sources."""

import ast
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet_audit.flow_graph import ENTRY, EXIT, RAISED, Branch, FlowGraph, immediate_dominators


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(1, 9))
    return draw(st.lists(st.lists(st.integers(0, size - 1), max_size=4), min_size=size, max_size=size))


def reached(following: list[list[int]], without: int | None = None) -> set[int]:
    """The points that a way from the entry leads to, where no way may pass one point."""
    found: set[int] = set()
    waiting = [] if without == ENTRY else [ENTRY]
    while waiting:
        point = waiting.pop()
        if point not in found:
            found.add(point)
            waiting += [target for target in following[point] if target != without]
    return found


@given(graphs())
def test_dominators_are_what_their_definition_says(following: list[list[int]]) -> None:
    everywhere = reached(following)
    nearest = immediate_dominators(following)
    for point in range(len(following)):
        by_definition = {other for other in everywhere if point in everywhere - reached(following, without=other)}
        chain = {point} if point in everywhere else set()
        up = nearest[point]
        while up is not None:
            chain.add(up)
            up = nearest[up]
        assert chain == by_definition


_DEEPEST = 3


class Over(BaseException):
    """Ends a run whose conditions are used up."""


class Oops(Exception):
    """Is raised by a risky statement."""


def program(seed: int) -> str:
    """A function of statements that log their number, in all kinds of control flow."""
    numbers, chance = count(), Random(seed)

    def block(depth: int, *, loops: bool, tries: bool, risks: bool) -> list[str]:
        lines = []
        for _ in range(chance.randint(1, 3)):
            kinds = ["here", *(["if", "if", "while", "for", "except", "finally"] if depth else [])]
            kind = chance.choice(kinds)
            around: dict[str, Any] = {"loops": loops, "tries": tries, "risks": risks}

            def inner(**given: bool) -> list[str]:
                return block(depth - 1, **(around | given))  # noqa: B023 - called in this turn

            number = next(numbers)
            if kind == "here":
                lines.append(f"{'risky' if risks else 'here'}({number})")
            elif kind == "if":
                lines += ["if cond():", *inner(), "else:", *inner()]
            elif kind in ("while", "for"):
                header = "while cond():" if kind == "while" else "for _ in items():"
                lines += [f"enter({number})", header, f" turn({number})", *inner(loops=True)]
            elif kind == "except":
                lines += ["try:", *inner(tries=True, risks=True), "except Oops:", *inner()]
            elif kind == "finally":
                lines += ["try:", *inner(risks=False), "finally:", f" here({number})"]
        leaves = ["return", *(["break", "continue"] if loops else []), *([] if tries else ["raise Oops"])]
        if depth < _DEEPEST and chance.random() < 0.5:
            lines.append(chance.choice(leaves))
        return [f" {line}" for line in lines]

    lines = block(_DEEPEST, loops=False, tries=False, risks=False)
    return "\n".join(["def f():", *lines])


def run(source: str, seed: int) -> tuple[list[tuple[str, int]], str]:
    """What a run of a program logs, and how it ended, where chance answers the conditions."""
    log: list[tuple[str, int]] = []
    chance = Random(seed)
    answers, ended = (chance.random() < 0.6 for _ in range(60)), []

    def cond() -> bool:
        answer = next(answers, None)
        if answer is None:
            ended.append("over")
            raise Over
        return answer

    def note(kind: str) -> Callable[[int], None]:
        return lambda number: None if ended else log.append((kind, number))

    def risky(number: int) -> None:
        note("here")(number)
        if cond():
            log.append(("thrown", number))
            raise Oops

    def items() -> Iterator[int]:
        while cond():
            yield 0

    names: dict[str, Any] = {"cond": cond, "risky": risky, "items": items, "Oops": Oops}
    exec(source, names | {kind: note(kind) for kind in ("here", "enter", "turn")}, names)
    try:
        names["f"]()
    except Oops:
        return log, "raised"
    except Over:
        return log, "over"
    return log, "returned"


@pytest.mark.parametrize("number_of_program", range(40))
def test_what_runs_is_what_the_graph_says(number_of_program: int) -> None:
    source = program(number_of_program)
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    made = FlowGraph(tree.body)
    numbers = {
        point: ast.literal_eval(one.value.args[0])
        for one, point in made.place.items()
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and ast.unparse(one.value.func) != "enter"
    }
    points = {number: point for point, number in numbers.items()}
    for seed in range(12):
        log, how = run(source, seed)
        is_thrown = any(kind == "thrown" for kind, _ in log)
        seen: set[int] = set()
        turns: dict[int, list[int]] = {}  # of each loop, what ran since its turn began
        for kind, number in log:
            if kind == "enter":
                turns.pop(number, None)
            elif kind != "thrown":
                dominating = made.dominating(points[number])
                assert dominating  # something leads there
                assert {numbers[up] for up in dominating if up in numbers} <= seen
                seen.add(number)
            if kind == "turn":
                loop = next(
                    one for one in ast.walk(tree) if getattr(one, "body", [None])[0] is made.points[points[number]]
                )
                inside = {made.place[one] for one in ast.walk(loop) if one in made.place}
                assert is_thrown or inside & set(turns.get(number, ())) <= made.repeated(loop)
                turns[number] = []
            for turn in turns.values() if kind in ("here", "turn") else ():
                turn.append(points[number])
        assert how != "returned" or is_thrown or {points[number] for number in seen} <= made.finishing


def graph(source: str) -> tuple[FlowGraph, dict[str, int]]:
    """The graph of a function's body, and the points of its statements `here("NAME")`."""
    tree = ast.parse(f"def f():\n{source}").body[0]
    assert isinstance(tree, ast.FunctionDef)
    made = FlowGraph(tree.body)
    places = {}
    for statement, point in made.place.items():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and statement.value.args:
            name = statement.value.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                places[name.value] = point
    return made, places


def conditions(made: FlowGraph, point: int) -> list[str]:
    """The outcomes that dominate a point, nearest first."""
    found = [branch for up in made.dominating(point) if isinstance(branch := made.points[up], Branch)]
    return [f"{ast.unparse(b.by.test)} {b.holds}" for b in found if isinstance(b.by, ast.If | ast.While)]


def test_an_early_return_at_any_depth_dominates_what_follows() -> None:
    made, at = graph(
        " if a:\n  return\n else:\n  if b:\n   return\n  if c:\n   here('deep')\n here('after')\n if d:\n  here('in')\n"
    )
    assert conditions(made, at["after"]) == ["b False", "a False"]
    assert conditions(made, at["in"]) == ["d True", "b False", "a False"]
    assert conditions(made, at["deep"]) == ["c True", "b False", "a False"]


def test_what_leads_out_of_a_loop_is_not_repeated() -> None:
    made, at = graph(
        " for x in xs:\n  if a:\n   here('last')\n   break\n  if b:\n   here('ends')\n   return\n"
        "  here('each')\n here('after')\n"
    )
    (loop,) = made.setup
    again = made.repeated(loop)
    assert at["each"] in again
    assert not {at["last"], at["ends"], at["after"]} & again


def test_a_loop_that_always_leaves_has_one_turn() -> None:
    made, at = graph(" while True:\n  here('once')\n  break\n here('after')\n")
    (loop,) = (one for one in made.place if isinstance(one, ast.While))
    assert made.repeated(loop) == set()
    assert made.dominators[at["after"]] is not None


def test_what_ends_in_an_exception_does_not_finish() -> None:
    made, at = graph(
        " if a:\n  here('bad')\n  raise E\n while True:\n  here('ever')\n  if b:\n   here('gives up')\n   sys.exit(1)\n"
    )
    assert at["ever"] in made.finishing
    assert not {at["bad"], at["gives up"], RAISED} & made.finishing


def test_a_return_goes_through_finally() -> None:
    made, at = graph(" try:\n  if a:\n   return\n  here('rest')\n finally:\n  here('clean')\n here('after')\n")
    assert conditions(made, at["clean"]) == []
    assert made.is_dominated(EXIT, at["clean"])
    assert made.is_dominated(at["after"], at["clean"])


def test_a_handler_runs_only_where_something_was_raised() -> None:
    made, at = graph(" try:\n  here('body')\n except E:\n  here('caught')\n here('after')\n")
    (handler,) = (b.by for b in made.outcomes if isinstance(b.by, ast.ExceptHandler))
    assert made.is_dominated(at["caught"], made.outcomes[Branch(handler, holds=True)])
    assert not made.is_dominated(at["after"], at["body"])


def test_nothing_leads_behind_a_return_or_out_of_an_endless_loop() -> None:
    made, at = graph(" while True:\n  here('ever')\n  continue\n  here('never')\n here('behind')\n")
    assert made.dominators[at["ever"]] is not None
    assert made.dominators[at["never"]] is made.dominators[at["behind"]] is None


def test_one_case_of_several_runs() -> None:
    made, at = graph(" match x:\n  case 1:\n   here('one')\n  case _:\n   here('rest')\n here('after')\n")
    assert not made.is_dominated(at["after"], at["one"])
    assert not made.is_dominated(at["rest"], at["one"])
