"""MEM101 zero-grad-to-zero: gradients are filled with zeros instead of being given up.

Finds       `zero_grad(set_to_none=False)`, and `p.grad.zero_()` for each parameter in a step loop.
Why slow    Each gradient is written once for nothing and read once more by the sum of the next backward pass; its
            memory is held through the forward pass.
Example     optimizer.zero_grad(set_to_none=False)
Instead     optimizer.zero_grad()
Gain        one write and one read of all gradients in a step; peak memory by up to the size of the gradients.
Fix         unsafe: a parameter that gets no gradient in a step is skipped by the optimiser instead of decayed. None
            where the program reads or writes `.grad` itself, which may be None then.
Source      torch.optim.Optimizer.zero_grad; None is the default since torch 2.0.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority, ReplaceStatement
from whet_audit.project import name_of
from whet_audit.project_words import neighbours
from whet_audit.rule_context import RuleContext

CODE = "MEM101"
NAME = "zero-grad-to-zero"
PRIORITY = Priority.LOW
_GRADIENTS = ("grad", "main_grad", "CUDAGraph", "make_graphed_callables")  # graphs hold on to their memory
_GAIN = Gain(0.0, 0.03, "one write and one read of all gradients in a step")


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls of zero_grad that are told to keep the gradients, and loops that do so by hand."""
    for call in context.calls("zero_grad"):
        given = context.keyword(call, "set_to_none", 0)
        if not isinstance(call.func, ast.Attribute) or not _is_false(given) or given is None:
            continue
        by_name = any(keyword.value is given for keyword in call.keywords)
        title = "let the gradients go"
        yield Hit(
            at=call,
            hot=context.hot(call),
            message=f"{context.shown(call)} writes zeros to every gradient and keeps their memory",
            confidence=Confidence.HIGH,
            gain=_GAIN,
            fix=None
            if _uses_gradients(context, call)
            else context.set_keyword(call, "set_to_none", "True", title, safe=False)
            if by_name
            else context.replace(given, "True", title, safe=False),
        )
    for call in context.calls("zero_", "fill_"):
        yield from _by_hand(context, call)


def _by_hand(context: RuleContext, call: ast.Call) -> Iterator[Hit]:
    """`p.grad.zero_()` or `p.grad.data.zero_()`, once for each parameter."""
    gradient = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(gradient, ast.Attribute) and gradient.attr == "data":
        gradient = gradient.value
    if not isinstance(gradient, ast.Attribute) or gradient.attr != "grad":
        return
    if any(context.constant(argument) != 0 for argument in call.args):
        return
    hot = context.hot(call)
    if hot is None or hot.guard or not hot.times_per_step:
        return
    yield Hit(
        at=call,
        hot=hot,
        message=f"{context.shown(call)} starts a kernel {hot.times_per_step} in every step",
        confidence=Confidence.MEDIUM,
        gain=_GAIN,
        fix=_dropped(context, call, gradient),
    )


def _dropped(context: RuleContext, call: ast.Call, gradient: ast.Attribute) -> Fix | None:
    statement = context.parent(call)
    if not isinstance(statement, ast.Expr) or _uses_gradients(context, statement):
        return None
    source = f"{context.source(gradient)} = None"
    return Fix("let the gradient go", False, (ReplaceStatement(context.span(statement), source),))


def _uses_gradients(context: RuleContext, node: ast.AST) -> bool:
    """Whether the program, but for the statement of a node and its guard, reads or writes gradients by hand."""
    own = context.statement(node)
    parent = context.parent(own)
    is_guarded = isinstance(parent, ast.If) and ".grad" in ast.unparse(parent.test) and all(map(_clears, parent.body))
    lines = range(parent.lineno if is_guarded and isinstance(parent, ast.If) else own.lineno, (own.end_lineno or 0) + 1)
    if any(each.attr in _GRADIENTS and each.lineno not in lines for each in context.nodes(ast.Attribute)):
        return True
    others = neighbours(context.project)[context.module] - {context.module}
    return any(each.attr in _GRADIENTS for other in others for each in other.nodes(ast.Attribute))


def _clears(statement: ast.stmt) -> bool:
    """`p.grad.zero_()` or `p.grad.detach_()`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and name_of(call) in ("zero_", "fill_", "detach_", "requires_grad_")


def _is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is False
