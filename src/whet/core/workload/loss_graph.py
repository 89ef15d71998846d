"""Look at the graph of a loss before backward: what it is a sum of, and which parameters it reaches."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from whet.core.workload.batch_parts import OMIT
from whet.errors import RecipeError


def check_graph(
    roots: Sequence[Any], losses: Sequence[Any], parameters: Sequence[nn.Parameter], checked: set[tuple[str, ...]]
) -> None:
    """Check that what backward begins at is a sum of the watched losses, and reaches the loop's parameters alone.

    Terms may begin later than with the first batch, so that the few nodes above the losses are looked at each time. The
    whole graph below them is looked at once for each way there.

    Args:
        roots: The nodes that backward begins at.
        losses: The nodes of the watched losses.
        parameters: Everything that has gradients in the loop.
        checked: The ways from roots to losses whose whole graphs have been looked at. This one is added.

    Raises:
        RecipeError: There are other terms, or other parameters, whose gradients would be wrong.
    """
    names = []
    for node in graph_nodes(roots, losses):
        if hasattr(node, "variable"):
            raise RecipeError(
                "the loss has terms beside those of torch.nn.functional, and whet cannot see how they depend on the "
                f"batch; {OMIT}"
            )
        names.append(node.name())
    way = (*names, *(node.name() for node in losses))
    if way in checked:
        return
    known = {id(p) for p in parameters}
    if any(hasattr(node, "variable") and id(node.variable) not in known for node in graph_nodes(losses, ())):
        raise RecipeError(f"backward reaches tensors that are neither the model's nor the optimiser's; {OMIT}")
    checked.add(way)


def graph_nodes(roots: Sequence[Any], ends: Sequence[Any]) -> Iterator[Any]:
    """Yield the nodes of a graph, from its roots to some of its nodes, which are not passed."""
    todo, seen = list(roots), {None, *ends}
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += [following for following, _ in node.next_functions]
