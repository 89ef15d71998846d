"""Loops that run a model on what it has made: of denoising, where each turn hands it on, and of generation."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from whet_audit.frequency import Frequencies
from whet_audit.project import root_name
from whet_audit.source import LoopNode, Module

_STEPS = 30  # where no default says it: pipelines take 4 to 200


def refines(module: Module, loop: LoopNode, models: Iterable[ast.Call]) -> bool:
    """Whether a loop hands what its models give on to them in the next turn: `x = sampler.step(model(x, t), t, x)`."""
    made_of: dict[str, set[str]] = {}
    given: list[tuple[str, set[str]]] = []  # what is made with a model's result, and what that model is given
    models = list(models)
    for target, value in _bound(module, loop):
        made_of.setdefault(target, set()).update(_names(value))
        inside = set(ast.walk(value))
        given += [(target, _names(call) - _names(call.func)) for call in models if call in inside]
    return any(target in _closure(names, made_of) for target, names in given)


def _bound(module: Module, loop: LoopNode) -> Iterator[tuple[str, ast.expr]]:
    """The names that a loop's turn binds, also by items of them, and what each is bound to; not what loops run over."""
    inside = set(ast.walk(loop))
    for name, bindings in module.function_of(loop).bindings.items():
        for one in bindings:
            if one.node in inside and one.value is not None and one.how != "item":
                yield name, one.value
    for node in inside:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield root_name(node.targets[0]), node.value


def _closure(names: set[str], made_of: dict[str, set[str]]) -> set[str]:
    """The names, and all of which their values are made in this turn or those before."""
    found: set[str] = set()
    while more := names - found:
        found |= more
        names = {one for name in more for one in made_of.get(name, ())}
    return found


def grows(loop: LoopNode) -> bool:
    """Whether the loop's body makes a sequence longer: concatenates or appends, or runs over positions."""
    grown = {"cat", "concat", "concatenate", "append", "hstack"}
    called = (c.func for c in ast.walk(loop) if isinstance(c, ast.Call))
    names = {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in called}
    return bool(names & grown) or isinstance(loop, ast.While)


def turns_a_call(frequencies: Frequencies, module: Module, loop: LoopNode) -> tuple[int, str]:
    """The turns of a denoising loop, for which somebody waits, and in words what that assumes."""
    known = frequencies.turns(module, loop)
    if known is not None:
        return known, ""
    function = module.function_of(loop)
    for argument in function.arguments:
        default = function.default_of(argument.arg) if "steps" in argument.arg else None
        if isinstance(default, ast.Constant) and isinstance(default.value, int) and default.value > 1:
            return default.value, f"{argument.arg}={default.value}, the default"
    return _STEPS, f"{_STEPS} denoising steps"


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
