"""MEM107 retain-graph: a backward pass keeps its graph for another one that never comes.

Finds       `backward(retain_graph=True)` where it is the only backward pass of the step, or the last one.
Why slow    Activations stay until the loss itself goes, so the peak holds them beside the optimiser's memory and the
            next forward pass.
Example     loss.backward(retain_graph=True); optimizer.step()
Instead     loss.backward()
Gain        memory: the activations of a step.
Fix         unsafe: where a graph does reach over steps, as with a hidden state that is not detached, it raises. None
            where something that the loss is made of is read again below.
Source      torch.Tensor.backward, "retain_graph".
"""

import ast
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.gradients import feeds_backward
from whet_audit.growth import loop_around
from whet_audit.hot_paths import TRAINS
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext

CODE = "MEM107"
NAME = "retain-graph"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_STEPS = 4  # assignments from the loss back
_GAIN = Gain(0.0, 0.05, "allocations; the activations of a step are what it saves")


def check(context: RuleContext) -> Iterator[Hit]:
    """Backward calls that retain the graph though no other one of the same step follows."""
    for call in context.calls("backward", "manual_backward"):
        given = context.keyword(call, "retain_graph")
        if not isinstance(given, ast.Constant) or given.value is not True or context.keyword(call, "create_graph"):
            continue
        hot = context.hot(call)
        if hot is None or hot.kind not in TRAINS or hot.times_per_step or _is_needed(context, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(call)} keeps the graph, and no other backward pass of the step follows",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
            fix=None
            if _is_read_below(context, call)
            else context.remove_keyword(call, "retain_graph", "let the graph go", safe=False),
        )


def _is_needed(context: RuleContext, call: ast.Call) -> bool:
    """Whether another backward pass may use the graph: one below, or gradients taken by hand."""
    function = context.function_of(call)
    if any(name_of(other) == "grad" for other in function.calls) or _is_one_of_several(context, call):
        return True
    if not any(context.hot_paths.runs_model(other, context.module) for other in function.calls) and _is_given(
        context, call
    ):
        return True
    others = [o for o in function.calls if o is not call and context.call_kind(o) is CallKind.BACKWARD]
    if any(other.lineno > call.lineno for other in others):
        return True
    steps = [
        o
        for o in function.calls
        if o is not call and context.target(o) and context.hot_paths.makes_step(o, context.module)
    ]
    return any(step not in others and context.call_kind(step) is CallKind.OTHER for step in steps)


def _is_one_of_several(context: RuleContext, call: ast.Call) -> bool:
    """Whether a loop around it runs several backward passes before the optimiser's one step."""
    loop = loop_around(context, call)
    steps = [other for other in context.function_of(call).calls if context.call_kind(other) is CallKind.STEP]
    return loop is not None and bool(steps) and not any(loop in context.ancestors(step) for step in steps)


def _is_given(context: RuleContext, call: ast.Call) -> bool:
    """Whether the loss comes from outside the function, whose caller may differentiate it again."""
    function = context.function_of(call)
    given = {argument.arg for argument in function.arguments if argument.arg != "self"}
    return any(feeds_backward(context, function, name) for name in given)


def _is_read_below(context: RuleContext, call: ast.Call) -> bool:
    """Whether the function reads, below the backward pass, what the loss was computed from: a graph may be shared."""
    function = context.function_of(call)
    known = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    for _ in range(_STEPS):
        values = [b.value for name in known for b in function.bindings.get(name, ()) if b.how == "value"]
        made = {n.id for value in values if value is not None for n in ast.walk(value) if isinstance(n, ast.Name)}
        known |= {name for name in made if any(b.how == "value" for b in function.bindings.get(name, ()))}
    end = call.end_lineno or call.lineno
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id in known and isinstance(node.ctx, ast.Load) and node.lineno > end:
            parent = context.parent(node)
            if not (
                isinstance(parent, ast.Attribute) and parent.attr in ("item", "detach", "data", "step", "zero_grad")
            ):
                return True
    return False
