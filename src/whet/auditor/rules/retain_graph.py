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

from whet.auditor.calls import CallKind
from whet.auditor.finding import Confidence, Gain, Hit, Priority
from whet.auditor.gradients import feeds_backward
from whet.auditor.growth import loop_around
from whet.auditor.heat import TRAINS
from whet.auditor.project import name_of
from whet.auditor.view import View

CODE = "MEM107"
NAME = "retain-graph"
PRIORITY = Priority.MEDIUM
_STEPS = 4  # assignments from the loss back
_GAIN = Gain(0.0, 0.05, "allocations; the activations of a step are what it saves")


def check(view: View) -> Iterator[Hit]:
    """Backward calls that retain the graph though no other one of the same step follows."""
    for call in view.calls("backward", "manual_backward"):
        given = view.keyword(call, "retain_graph")
        if not isinstance(given, ast.Constant) or given.value is not True or view.keyword(call, "create_graph"):
            continue
        hot = view.hot(call)
        if hot is None or hot.kind not in TRAINS or hot.times_per_step or _is_needed(view, call):
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{view.shown(call)} keeps the graph, and no other backward pass of the step follows",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
            fix=None
            if _is_read_below(view, call)
            else view.remove_keyword(call, "retain_graph", "let the graph go", safe=False),
        )


def _is_needed(view: View, call: ast.Call) -> bool:
    """Whether another backward pass may use the graph: one below, or gradients taken by hand."""
    function = view.function_of(call)
    if any(name_of(other) == "grad" for other in function.calls) or _is_one_of_several(view, call):
        return True
    if not any(view.heat.runs_model(other, view.module) for other in function.calls) and _is_given(view, call):
        return True
    others = [o for o in function.calls if o is not call and view.call_kind(o) is CallKind.BACKWARD]
    if any(other.lineno > call.lineno for other in others):
        return True
    steps = [o for o in function.calls if o is not call and view.target(o) and view.heat.makes_step(o, view.module)]
    return any(step not in others and view.call_kind(step) is CallKind.OTHER for step in steps)


def _is_one_of_several(view: View, call: ast.Call) -> bool:
    """Whether a loop around it runs several backward passes before the optimiser's one step."""
    loop = loop_around(view, call)
    steps = [other for other in view.function_of(call).calls if view.call_kind(other) is CallKind.STEP]
    return loop is not None and bool(steps) and not any(loop in view.ancestors(step) for step in steps)


def _is_given(view: View, call: ast.Call) -> bool:
    """Whether the loss comes from outside the function, whose caller may differentiate it again."""
    function = view.function_of(call)
    given = {argument.arg for argument in function.arguments if argument.arg != "self"}
    return any(feeds_backward(view, function, name) for name in given)


def _is_read_below(view: View, call: ast.Call) -> bool:
    """Whether the function reads, below the backward pass, what the loss was computed from: a graph may be shared."""
    function = view.function_of(call)
    known = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    for _ in range(_STEPS):
        values = [b.value for name in known for b in function.bindings.get(name, ()) if b.how == "value"]
        made = {n.id for value in values if value is not None for n in ast.walk(value) if isinstance(n, ast.Name)}
        known |= {name for name in made if any(b.how == "value" for b in function.bindings.get(name, ()))}
    end = call.end_lineno or call.lineno
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id in known and isinstance(node.ctx, ast.Load) and node.lineno > end:
            parent = view.parent(node)
            if not (
                isinstance(parent, ast.Attribute) and parent.attr in ("item", "detach", "data", "step", "zero_grad")
            ):
                return True
    return False
