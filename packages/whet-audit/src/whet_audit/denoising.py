"""Denoising loops: each turn hands what the model is given on to the next one, through a scheduler's step."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from whet_audit.frequency import Frequencies
from whet_audit.project import Project, name_of
from whet_audit.source import LoopNode, Module

_STEPS = 30  # where no default says it: pipelines take 4 to 200


def refines(project: Project, module: Module, loop: LoopNode, models: Iterable[ast.Call]) -> bool:
    """Whether a loop that calls models is a denoising loop: `x = scheduler.step(model(x, t), t, x)`."""
    inside = set(ast.walk(loop))
    values: dict[str, list[ast.expr]] = {}
    for name, bindings in module.function_of(loop).bindings.items():
        values[name] = [one.value for one in bindings if one.node in inside and one.value is not None]

    def read_for(names: set[str]) -> set[str]:
        """All names of which the values go into those of some names, in this turn or the turns before."""
        read: set[str] = set()
        while more := names - read:
            read |= more
            names = {one for name in more for value in values.get(name, ()) for one in _names(value)}
        return read

    for name in read_for({name for call in models for name in _names(call)}):
        steps = (one for value in values.get(name, ()) for one in ast.walk(value) if _is_step(project, module, one))
        if any(name in read_for(_names(step)) for step in steps):
            return True
    return False


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


def _is_step(project: Project, module: Module, node: ast.AST) -> bool:
    """Whether it is a call of a scheduler's step, or of a function that makes one."""
    if not isinstance(node, ast.Call):
        return False
    target = project.target(module, node)
    return name_of(node) == "step" or (target is not None and any(name_of(one) == "step" for one in target.calls))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
