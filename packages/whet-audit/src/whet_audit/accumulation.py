"""Gradient accumulation: loops that call backward in every micro-step and the optimiser in every n-th."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from whet_audit.calls import CallKind
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext
from whet_audit.source import LoopNode

_NAMED = re.compile(r"accum|grad_acc|micro|(^|_)gas$|update_freq|acc_steps|virtual|iter_size|update_every", re.I)


class Accumulation(NamedTuple):
    """branch: the `if` that the optimiser's step lies under. every: what the step number is taken modulo of."""

    loop: LoopNode
    branch: ast.If
    every: ast.expr
    backwards: list[ast.Call]  # calls that run backward in each micro-step, by themselves or through a function


def accumulations(context: RuleContext) -> Iterator[Accumulation]:
    """The loops of a module that accumulate gradients."""
    for loop in context.loops(HeatKind.TRAINING):
        calls = [call for statement in loop.body for call in ast.walk(statement) if isinstance(call, ast.Call)]
        for branch in _branches(context, calls):
            every = _modulus(branch.test)
            inside = set(ast.walk(branch))
            if every is None or context.constant(every) == 1 or not _clears(calls, inside):
                continue
            if any(_runs_backward(context, call) for call in calls if call in inside):
                continue  # another model's turn, as in GANs
            backwards = [call for call in calls if call not in inside and _runs_backward(context, call)]
            if backwards:
                yield Accumulation(loop, branch, every, backwards)
                break


def last_name(expression: ast.expr) -> str:
    """What a chain ends in: "steps" of `args.steps` and of `args["steps"]`."""
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        return str(expression.slice.value)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def _branches(context: RuleContext, calls: list[ast.Call]) -> Iterator[ast.If]:
    seen: set[ast.AST] = set()
    for call in calls:
        if context.call_kind(call) is not CallKind.STEP:
            continue
        child: ast.AST = call
        for up in context.ancestors(call):
            if isinstance(up, ast.For | ast.While | ast.FunctionDef):
                break
            if isinstance(up, ast.If) and child in up.body and up not in seen and _modulus(up.test) is not None:
                seen.add(up)
                yield up
            child = up


def _modulus(test: ast.expr) -> ast.expr | None:
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return node.right
    return None


def _clears(calls: list[ast.Call], inside: set[ast.AST]) -> bool:
    """Whether gradients are zeroed under the branch and nowhere else in the loop."""
    cleared = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"]
    return bool(cleared) and all(call in inside for call in cleared)


def _runs_backward(context: RuleContext, call: ast.Call) -> bool:
    if context.call_kind(call) is CallKind.STEP:
        return False
    return context.hot_paths.makes_step(call, context.module)


def is_named_so(expression: ast.expr) -> bool:
    """Whether a modulus is called as people call accumulation steps."""
    return _NAMED.search(last_name(expression)) is not None
