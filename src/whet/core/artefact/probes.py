"""Inputs that were not given, on which a graph must answer as the model does.

torch.export runs the model's code once, with tensors that have no values. Where the code asks for a value, it refuses.
Where the code asks for something else (how a tensor lies in memory, whether it is being exported, how a tensor is
printed), the answer becomes part of the graph without a word. So the graph is tried beside the code it was made from.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from whet.core.side_effects import altered
from whet.core.workload import is_near
from whet.errors import TargetError

Run = Callable[..., Sequence[Tensor]]


def check_values(model: Run, graph: Run, given: Sequence[Tensor]) -> None:
    """Raise TargetError where the graph answers otherwise than the model for other values of its inputs.

    It checks on a CPU only: a value may be an index out of range, and a GPU does not recover from that.
    """
    if any(x.device.type != "cpu" for x in given):
        return
    for how, inputs in altered(given):
        if misleads(model, graph, inputs):
            raise TargetError(
                f"the graph that torch.export made is not the model: with its inputs {how} it answers otherwise; does "
                "forward ask whether it is being compiled, catch errors, or use what is not a tensor?"
            )


def conditions_on_layout(model: Run, graph: Run, given: Sequence[Tensor]) -> list[str]:
    """Return conditions, in the guards' notation, for inputs whose strides decide what the model does.

    Model and graph go from flat tensors to flat tensors. `given` holds the inputs that the graph was traced with.
    """
    conditions = []
    for i, x in enumerate(given):
        is_contiguous = x.is_contiguous()
        other = _laid_otherwise(x) if is_contiguous else x.contiguous()
        if other.is_contiguous() == is_contiguous:
            continue  # there is only one way for it to lie
        if misleads(model, graph, [*given[:i], other, *given[i + 1 :]]):
            conditions.append(f"{'' if is_contiguous else 'not '}L['tensors'][{i}].is_contiguous()")
    return conditions


def _laid_otherwise(x: Tensor) -> Tensor:
    """Return a tensor of equal values whose first and last dimension have swapped places in memory."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x


def misleads(model: Run, graph: Run, inputs: Sequence[Tensor]) -> bool:
    """Return whether the graph answers differently from the model. Inputs that it refuses do not count."""
    try:
        with torch.no_grad():
            found = tuple(graph(*(x.clone() for x in inputs)))
    except Exception:  # noqa: BLE001 - sizes or values that do not go together
        return False
    try:
        with torch.no_grad():
            expected = tuple(model(*(x.clone() for x in inputs)))
    except Exception:  # noqa: BLE001 - the user's code may raise anything for what it is not made for
        return True
    return len(expected) != len(found) or not all(map(is_near, expected, found))


def check_randomness(program: torch.export.ExportedProgram) -> None:
    """Raise TargetError where random numbers reach a program's outputs: a graph lacks the seed that forward sets."""
    main = program.graph_module.graph
    reaching = _ancestors(next(node for node in main.nodes if node.op == "output"))
    inner = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule) and m.graph is not main]
    for node in [*reaching, *(node for graph in inner for node in graph.nodes)]:
        if node.op == "call_function" and _is_random(node):
            raise TargetError(
                f"forward draws random numbers ({node.target}) that its outputs depend on, and a graph does not keep "
                "their seed; draw them outside and give them as an input"
            )


def _ancestors(node: fx.Node) -> list[fx.Node]:
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found:
                found[source] = None
                waiting.append(source)
    return list(found)


def _is_random(node: fx.Node) -> bool:
    """Return whether an operator draws random numbers. Dropout in evaluation and attention without dropout do not."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    named: dict[str, Any] = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    named |= dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    is_off = any(named.get(name) is False for name in ("train", "training"))
    return not is_off and not any(named.get(name) == 0 for name in ("p", "dropout_p", "dropout"))
